"""The front matter of a SKILL.md."""

import pytest

from corral.wire.errors import InvalidRequest
from corral.wire.front_matter import BYTES, FrontMatter, front_matter


@pytest.mark.parametrize(
    ("text", "name", "description"),
    [
        ("---\nname: a\ndescription: b\n---\n", "a", "b"),
        ("---\r\nname: a\r\ndescription: b\r\n---\r\nrest", "a", "b"),
        ("\ufeff---\nname: a\ndescription: b\n---", "a", "b"),
        ("--- \nname: a-1\ndescription: 'it''s: b'\n---\t\n", "a-1", "it's: b"),
        (
            "---\ndescription: >\n  folded\n  text\nlicense: MIT\nmetadata: {x: [1, 2]}\n---\n",
            "",
            "folded text",
        ),
        ("---\nname: a\ndescription: |\n  two\n  lines\n---\n---\n", "a", "two\nlines"),
        ("---\nname: '7'\ndescription: größe ✓\n---\n", "7", "größe ✓"),
    ],
)
def test_it_is_read_as_people_write_it(text: str, name: str, description: str) -> None:
    assert front_matter(text.encode()) == FrontMatter(name, description)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must begin with a front matter"),
        ("name: a\n---\n", "must begin with a front matter"),
        ("\n---\nname: a\ndescription: b\n---\n", "must begin with a front matter"),
        ("---\nname: a\ndescription: b\n", "must begin with a front matter"),
        ("---\n---\n", "fields and values"),
        ("---\n- a\n---\n", "fields and values"),
        ("---\njust text\n---\n", "fields and values"),
        ("---\nname: a\n---\n", "description: Field required"),
        ("---\nname: a\ndescription: ' '\n---\n", "description: Field required"),
        ("---\nname: a\ndescription: true\n---\n", "description: Input should be a valid string"),
        ("---\nname: 1\ndescription: b\n---\n", "name: Input should be a valid string"),
        ("---\nname: null\ndescription: b\n---\n", "name: Input should be a valid string"),
        ("---\nname: a b\ndescription: b\n---\n", "name: must be"),
        ("---\nname: -a\ndescription: b\n---\n", "name: must be"),
        ("---\nname: a-\ndescription: b\n---\n", "name: must be"),
        ("---\nname: ñ\ndescription: b\n---\n", "name: must be"),
        ("---\nname: a\ndescription: b\ndescription: c\n---\n", "description: given more than once"),
        ("---\n? [a]\n: b\n---\n", "a field whose name is no text"),
        ("---\nname: &a x\ndescription: *a\n---\n", "must not use anchors"),
        ("---\nname: a\ndescription: [unclosed\n---\n", "is no YAML"),
        ("---\nname: a\ndescription: b: c\n---\n", "line 3"),
        ("---\nname: !!python/object/apply:os.system [ls]\ndescription: b\n---\n", "name: Input should be"),
        ('---\nname: a\ndescription: "\\0"\n---\n', "NUL"),
        ("---\nname: a\ndescription: b\nx:\n" + "- 1\n" * 3000 + "---\n", "too large"),
        ("---\nx: " + "{a: " * 17 + "1" + "}" * 17 + "\n---\n", "too large"),
    ],
)
def test_what_is_wrong_with_it_is_said(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^files: SKILL\.md: ") as caught:
        front_matter(text.encode())
    assert message in caught.value.message


def test_it_must_end_within_what_is_read_of_the_file() -> None:
    long = "---\nname: a\ndescription: b\n#" + "é" * BYTES + "\n---\n"
    with pytest.raises(InvalidRequest, match="within the first"):
        front_matter(long.encode()[:BYTES])
    short = "---\nname: a\ndescription: b\n---\n" + "é" * BYTES
    assert front_matter(short.encode()[:BYTES]).name == "a"
