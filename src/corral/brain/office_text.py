"""The text of spreadsheets, documents and slides in the Office Open XML formats, for models to read.

Such a file comes from an agent, so nothing in it is trusted: archives and their parts are read up to bounds,
and a part that declares entities, which the formats do not allow, is not parsed. Blocking: call it in a
thread.
"""

import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree

_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
SHEET: Final = f"{_OFFICE}.spreadsheetml.sheet"
DOCUMENT: Final = f"{_OFFICE}.wordprocessingml.document"
SLIDES: Final = f"{_OFFICE}.presentationml.presentation"
OFFICE_TYPES: Final = frozenset({SHEET, DOCUMENT, SLIDES})

PART_BYTES: Final = 8 * 1024 * 1024
"""Of one part of an archive once it is unpacked; a larger one is not read."""
ARCHIVE_BYTES: Final = 64 * 1024 * 1024
"""Of all parts together, by what the archive says of them, which is also the most that is read of each."""
TEXT_CHARACTERS: Final = 2_000_000
_PARTS: Final = 200
_NUMBER: Final = re.compile(r"(\d+)\.xml$")


def office_text(mime_type: str, content: bytes) -> str | None:
    """The text of a file of one of `OFFICE_TYPES`; None if it is none, or is too large."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(one.file_size for one in archive.infolist()) > ARCHIVE_BYTES:
                return None
            return _bounded(_lines(archive, mime_type))
    except _UNREADABLE:
        return None


def _lines(archive: zipfile.ZipFile, mime_type: str) -> Iterator[str]:
    if mime_type == SHEET:
        return _sheets(archive)
    if mime_type == DOCUMENT:
        return _paragraphs(_parsed(archive, "word/document.xml"))
    return _slides(archive)


class _Refused(Exception):
    """A part that is not parsed."""


_UNREADABLE: Final = (
    _Refused,
    ElementTree.ParseError,
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,  # encrypted, or packed in a way that is not known here
)
"""What reading a file raises that is broken, strange, or no such file at all."""


def _bounded(lines: Iterator[str]) -> str:
    kept: list[str] = []
    size = 0
    for line in lines:
        kept.append(line)
        size += len(line) + 1
        if size > TEXT_CHARACTERS:
            kept.append("(The rest is left out.)")
            break
    return "\n".join(kept)


def _parsed(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    with archive.open(name) as part:
        content = part.read(PART_BYTES + 1)
    # Without NUL the part is in an encoding in which the declarations would be seen as they are written here.
    if len(content) > PART_BYTES or b"\0" in content or b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise _Refused(name)
    return ElementTree.fromstring(content)  # noqa: S314  # no entities, and bounded


def _numbered(archive: zipfile.ZipFile, folder: str) -> list[str]:
    """The numbered parts directly in a folder, in the order of their numbers."""
    found = [
        (int(match[1]), name)
        for name in archive.namelist()
        if name.startswith(folder) and "/" not in name[len(folder) :] and (match := _NUMBER.search(name))
    ]
    return [name for _, name in sorted(found)][:_PARTS]


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _all(element: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    return (one for one in element.iter() if _local(one) == name)


def _text(element: ElementTree.Element) -> str:
    """The text of a paragraph or a shared string."""
    parts: list[str] = []
    for one in element.iter():
        match _local(one):
            case "t":
                parts.append(one.text or "")
            case "tab":
                parts.append("\t")
            case "br":
                parts.append("\n")
            case _:
                pass
    return "".join(parts)


def _paragraphs(root: ElementTree.Element) -> Iterator[str]:
    return (text for one in _all(root, "p") if (text := _text(one)).strip())


def _slides(archive: zipfile.ZipFile) -> Iterator[str]:
    for number, name in enumerate(_numbered(archive, "ppt/slides/"), 1):
        yield f"# Slide {number}"
        yield from _paragraphs(_parsed(archive, name))


def _sheets(archive: zipfile.ZipFile) -> Iterator[str]:
    strings: list[str] = []
    if "xl/sharedStrings.xml" in archive.namelist():
        strings = [_text(one) for one in _all(_parsed(archive, "xl/sharedStrings.xml"), "si")]
    for name, title in _titled(archive):
        yield f"# Sheet {title}"
        for row in _all(_parsed(archive, name), "row"):
            cells = [f"{one.get('r', '?')}: {shown}" for one in row if (shown := _cell(one, strings))]
            if cells:
                yield " | ".join(cells)


def _titled(archive: zipfile.ZipFile) -> list[tuple[str, str]]:
    """The sheets that are there, in the order of the workbook, with their titles."""
    targets = {
        one.get("Id"): (one.get("Target") or "").removeprefix("/xl/")
        for one in _all(_parsed(archive, "xl/_rels/workbook.xml.rels"), "Relationship")
    }
    found: list[tuple[str, str]] = []
    for sheet in _all(_parsed(archive, "xl/workbook.xml"), "sheet"):
        link = next((value for name, value in sheet.items() if name.endswith("}id")), None)
        part = f"xl/{targets.get(link, '')}"
        if part in archive.namelist():
            found.append((part, sheet.get("name") or "?"))
    return found[:_PARTS]


def _cell(cell: ElementTree.Element, strings: list[str]) -> str:
    """What a cell holds: its value, and before that the formula that it comes from."""
    value = next((one.text or "" for one in _all(cell, "v")), "")
    match cell.get("t"):
        case "s":
            at = int(value) if value.isascii() and value.isdigit() else -1
            value = strings[at] if 0 <= at < len(strings) else ""
        case "inlineStr":
            value = _text(cell)
        case _:
            pass
    formula = next((one.text for one in _all(cell, "f") if one.text), None)
    return value if formula is None else f"={formula} → {value or '(not computed)'}"
