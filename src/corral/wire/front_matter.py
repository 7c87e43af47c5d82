"""The front matter of a skill: the YAML between two lines of three hyphens at the top of its SKILL.md.

Nothing is constructed from the YAML: its events are counted first, then the two fields that matter are taken
from the tree. Aliases, which can make a small text an endless one, are not admitted.
"""

import re
from collections.abc import Iterable
from typing import Final, cast

import msgspec
import yaml

from corral.wire.errors import InvalidRequest
from corral.wire.text import is_clean

NAME_LENGTH: Final = 64
DESCRIPTION_LENGTH: Final = 1024
BYTES: Final = 64 * 1024
"""Within how many bytes of the file the front matter must have ended."""

_NAME: Final = re.compile(r"[a-z0-9]+(?:-+[a-z0-9]+)*")
_FENCE: Final = re.compile(r"---[ \t]*")
_DEPTH: Final = 16
_EVENTS: Final = 2_000
_TEXT: Final = "tag:yaml.org,2002:str"


class FrontMatter(msgspec.Struct, frozen=True):
    """What a skill says of itself. ``name`` is empty where it says none."""

    name: str
    description: str


def front_matter(head: bytes) -> FrontMatter:
    """The front matter of a SKILL.md, of which `head` are the first `BYTES` (all of it, if it has fewer).

    Raises:
        InvalidRequest: there is none, it is no YAML, or a field is missing or out of bounds.
    """
    fields = _fields(_block(head))
    name = _text(fields, "name")
    description = _text(fields, "description")
    if name:
        check_name(name)
    if not description.strip():
        raise _refused("description: Field required")
    if len(description) > DESCRIPTION_LENGTH:
        raise _refused(f"description: must have at most {DESCRIPTION_LENGTH} characters")
    if not is_clean(description):
        raise _refused("description: must not hold NUL characters")
    return FrontMatter(name, description.strip())


def check_name(name: str) -> None:
    """A skill's name, which is the name of its folder as well (contract section 17).

    Raises:
        InvalidRequest: it is too long, or has characters that no name has.
    """
    if len(name) > NAME_LENGTH or not _NAME.fullmatch(name):
        raise _refused(
            f"name: must be at most {NAME_LENGTH} lower-case letters, digits and hyphens, with no hyphen at "
            f"either end; it is {name[:100]!r}"
        )


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(f"files: SKILL.md: {why}")


def _block(head: bytes) -> str:
    try:
        # The end may cut a character in two; that is beyond the front matter, or there is none.
        text = head.decode("utf-8-sig") if len(head) < BYTES else head.decode("utf-8-sig", "ignore")
    except UnicodeDecodeError:
        raise _refused("must be UTF-8") from None
    first, *lines = text.replace("\r\n", "\n").split("\n")
    if _FENCE.fullmatch(first):
        for number, line in enumerate(lines):
            if _FENCE.fullmatch(line):
                return "\n".join(lines[:number])
    raise _refused(
        "must begin with a front matter: a line of three hyphens, `name:` and `description:`, and another "
        f"line of three hyphens, within the first {BYTES} bytes"
    )


def _fields(block: str) -> dict[str, yaml.Node]:
    try:
        _check_extent(yaml.parse(block, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        root: object = yaml.compose(block, Loader=yaml.SafeLoader)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _refused(f"the front matter is no YAML: {_reason(error)}") from None
    if not isinstance(root, yaml.MappingNode):
        raise _refused("the front matter must be fields and values, such as `name: my-skill`")
    fields: dict[str, yaml.Node] = {}
    for key, value in cast("list[tuple[yaml.Node, yaml.Node]]", root.value):
        if not isinstance(key, yaml.ScalarNode):
            raise _refused("the front matter has a field whose name is no text")
        if key.value in fields:
            raise _refused(f"{str(key.value)[:100]}: given more than once")
        fields[str(key.value)] = value
    return fields


def _check_extent(events: Iterable[yaml.Event]) -> None:
    depth = 0
    for count, event in enumerate(events):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _refused("the front matter must not use anchors and aliases")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEPTH or count > _EVENTS:
            raise _refused(f"the front matter is too large: {_DEPTH} levels and {_EVENTS} parts at most")


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}, line {error.problem_mark.line + 2}"
    return str(error).split("\n", 1)[0][:200]


def _text(fields: dict[str, yaml.Node], name: str) -> str:
    node = fields.get(name)
    if node is None:
        return ""
    if not isinstance(node, yaml.ScalarNode) or node.tag != _TEXT:
        raise _refused(f"{name}: Input should be a valid string")
    return str(node.value)
