"""The text of office files, whoever made them."""

import io
import zipfile

import pytest

from corral.brain import office_text as office
from corral.brain.office_text import DOCUMENT, PART_BYTES, SHEET, SLIDES, office_text

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
REL = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DRAWING = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'


def packed(**parts: str | bytes) -> bytes:
    """An archive of these parts; `__` in a name is a slash and `_dot_` a dot."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return file.getvalue()


def workbook(sheet: str | bytes, **more: str) -> bytes:
    file = io.BytesIO()
    relation = (
        '<Relationship Id="rId7" Target="worksheets/sheet3.xml"/><Relationship Id="rId8" Target="gone.xml"/>'
    )
    parts: dict[str, str | bytes] = {
        "xl/workbook.xml": f'<workbook {MAIN} {REL}><sheets><sheet name="Assumptions" r:id="rId7"/>'
        '<sheet name="Gone" r:id="rId8"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f"<Relationships>{relation}</Relationships>",
        "xl/worksheets/sheet3.xml": sheet,
        **more,
    }
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return file.getvalue()


def test_a_sheet_shows_titles_cells_and_formulas() -> None:
    strings = f"<sst {MAIN}><si><t>Growth</t></si><si><r><t>of </t></r><r><t>sales</t></r></si></sst>"
    sheet = (
        f"<worksheet {MAIN}><sheetData>"
        '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c>'
        '<c r="C1" t="s"><v>9</v></c></row>'
        '<row r="2"><c r="A2"><v>0.05</v></c><c r="B2"><f>A2*2</f><v>0.1</v></c><c r="C2"><f>A2</f></c></row>'
        '<row r="3"/><row r="4"><c r="A4" t="inlineStr"><is><t>inline</t></is></c></row>'
        "</sheetData></worksheet>"
    )
    content = workbook(sheet, **{"xl/sharedStrings.xml": strings})
    assert office_text(SHEET, content) == (
        "# Sheet Assumptions\nA1: Growth | B1: of sales\n"
        "A2: 0.05 | B2: =A2*2 → 0.1 | C2: =A2 → (not computed)\n"
        "A4: inline"
    )


def test_a_document_shows_its_paragraphs() -> None:
    body = "".join(f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>" for text in ("One.", " ", "Two &amp; three."))
    tabbed = "<w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t></w:r></w:p>"
    content = packed(
        word__document_dot_xml=f"<w:document {WORD}><w:body>{body}{tabbed}</w:body></w:document>"
    )
    assert office_text(DOCUMENT, content) == "One.\nTwo & three.\na\tb"


def test_slides_come_in_their_order() -> None:
    def slide(text: str) -> str:
        return f"<sld {DRAWING}><a:p><a:r><a:t>{text}</a:t></a:r></a:p></sld>"

    content = packed(
        ppt__slides__slide10_dot_xml=slide("last"),
        ppt__slides__slide2_dot_xml=slide("first"),
        ppt__slides___rels__slide2_dot_xml=slide("not a slide"),
    )
    assert office_text(SLIDES, content) == "# Slide 1\nfirst\n# Slide 2\nlast"


@pytest.mark.parametrize(
    "part",
    [
        '<!DOCTYPE d [<!ENTITY a "aaaa">]><document><p><t>&a;</t></p></document>',
        "<document><p>".encode("utf-16"),
        "<document><p>",
        "",
        b"<d>" + b" " * PART_BYTES + b"</d>",
    ],
    ids=["entities", "another encoding", "torn", "empty", "large"],
)
def test_a_part_that_should_not_be_parsed_gives_no_text(part: str | bytes) -> None:
    assert office_text(DOCUMENT, packed(word__document_dot_xml=part)) is None


def test_an_archive_that_unpacks_to_too_much_gives_no_text() -> None:
    body = f"<w:document {WORD}><w:p><w:t>x</w:t></w:p></w:document>"
    small = packed(word__document_dot_xml=body, word__media__a_dot_bin=b"")
    large = packed(word__document_dot_xml=body, word__media__a_dot_bin=bytes(office.ARCHIVE_BYTES))
    assert (office_text(DOCUMENT, small), office_text(DOCUMENT, large)) == ("x", None)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", packed(other="x")])
@pytest.mark.parametrize("kind", [SHEET, DOCUMENT])
def test_what_is_no_such_file_gives_no_text(kind: str, content: bytes) -> None:
    assert office_text(kind, content) is None


def test_a_damaged_archive_gives_no_text() -> None:
    body = "".join(f"<w:p><w:t>{n * 7919}</w:t></w:p>" for n in range(500))
    whole = packed(word__document_dot_xml=f"<w:document {WORD}>{body}</w:document>")
    middle = len(whole) // 2
    for damage in (bytes(20), b"\xff" * 20):
        assert office_text(DOCUMENT, whole[:middle] + damage + whole[middle + 20 :]) is None


def test_a_very_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "TEXT_CHARACTERS", 10)
    body = "".join(f"<w:p><w:t>{n:04}</w:t></w:p>" for n in range(100))
    content = packed(word__document_dot_xml=f"<w:document {WORD}>{body}</w:document>")
    assert office_text(DOCUMENT, content) == "0000\n0001\n0002\n(The rest is left out.)"
