"""The lines between this program and the worker: JSON, by the standard library's own C functions.

Module `json` compiles regular expressions as it is imported, which takes as long as all else that this
program does before its first call. What it compiles them for are the parts that it does in Python where the C
functions are missing; then it is imported after all.
"""

from __future__ import annotations

from .quick import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def decode(line: bytes) -> Any:
    """Return what a line from the worker says. The worker is trusted to write JSON."""
    return _scan(line.decode("utf-8"), 0)[0]


def encode(message: Any) -> bytes:
    """Return the line that says `message`: mappings, lists, text, whole numbers, truth values and None."""
    pieces: list[str] = []
    _append(message, pieces.append)
    pieces.append("\n")
    return "".join(pieces).encode("ascii")


def _append(value: Any, add: Callable[[str], object]) -> None:
    if isinstance(value, str):
        add(_quoted(value))
    elif value is None or value is True or value is False:
        add("null" if value is None else "true" if value else "false")
    elif isinstance(value, int):
        add(str(value))
    elif isinstance(value, dict):
        add("{")
        for place, (name, inner) in enumerate(cast("dict[str, Any]", value).items()):
            add(f"{', ' if place else ''}{_quoted(name)}: ")
            _append(inner, add)
        add("}")
    else:
        add("[")
        for place, inner in enumerate(value):
            if place:
                add(", ")
            _append(inner, add)
        add("]")


class _Reading:
    """What the scanner wants to know of a decoder."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _functions() -> tuple[Callable[[str, int], tuple[Any, int]], Callable[[str], str]]:
    try:
        from _json import encode_basestring_ascii, make_scanner

        scan = make_scanner(cast("Any", _Reading))
        if scan('{"a": [1.5, "\\ud83d\\ude00", true]}', 0)[0] == {"a": [1.5, "\U0001f600", True]}:
            return scan, encode_basestring_ascii
    except (ImportError, AttributeError, TypeError):
        pass  # this Python has them not, or others
    import json

    return json.JSONDecoder().raw_decode, json.dumps


_scan, _quoted = _functions()
