"""Finds the script that a conversation names: the last `script: ...` line of a user's text governs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from corral.testing.conversation import Conversation
from corral.testing.refusal import Refused
from corral.testing.steps import Script, decode_script

_LINE = re.compile(r"^[ \t]*script:[ \t]*", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Directive:
    """The governing directive: its script, or the name of one, and the index of the turn that holds it."""

    script: Script
    turn: int


def find(conversation: Conversation) -> Directive | None:
    """The governing directive; None when the conversation has none. Raises `Refused` if it cannot be read."""
    for at in range(len(conversation.turns) - 1, -1, -1):
        turn = conversation.turns[at]
        if turn.role != "user":
            continue
        for path, block in reversed(turn.blocks):
            if block["type"] == "text" and (lines := list(_LINE.finditer(block["text"]))):
                return Directive(_read(block["text"], _outermost(block["text"], lines), path), at)
    return None


def _outermost(text: str, lines: list[re.Match[str]]) -> int:
    """The end of the last `script:` that is not itself inside another directive's JSON."""
    start, inside = lines[0].end(), 0
    for line in lines:
        if line.start() < inside:
            continue
        start = line.end()
        inside = start
        if text[start : start + 1] in ("{", "["):
            try:
                inside = json.JSONDecoder().raw_decode(text, start)[1]
            except json.JSONDecodeError:
                continue
    return start


def _read(text: str, start: int, path: str) -> Script:
    if text[start : start + 1] in ("{", "["):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise Refused(path, f"the script is not JSON: {error}") from None
        return decode_script(value, path)
    name = _NAME.match(text, start)
    if name is None:
        raise Refused(path, "script: needs a name, or JSON, on the same line")
    return Script(name=name[0])
