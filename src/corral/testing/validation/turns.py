"""Messages as turns: consecutive messages of one role are merged and keep their paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from corral.testing.refusal import Refused
from corral.testing.validation.fields import join


@dataclass
class Turn:
    """The blocks of one or more consecutive messages of one role, each with its path in the request."""

    role: str
    path: str
    blocks: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])


def merge(messages: list[dict[str, Any]]) -> list[Turn]:
    """The turns of well-shaped messages; a string content becomes one text block."""
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        if not turns or turns[-1].role != message["role"]:
            turns.append(Turn(message["role"], path))
        content = message["content"]
        if isinstance(content, str):
            turns[-1].blocks.append((join(path, "content"), {"type": "text", "text": content}))
        else:
            turns[-1].blocks += [(join(path, f"content.{at}"), block) for at, block in enumerate(content)]
    return turns


def holds_results(turn: Turn) -> bool:
    """Whether the turn answers tool calls."""
    return any(block["type"] == "tool_result" for _, block in turn.blocks)


def check_pairing(turns: list[Turn]) -> None:
    """Every `tool_use` has one `tool_result` in the very next turn, before other blocks; no id twice."""
    used: set[str] = set()
    pending: dict[str, str] = {}
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            _refuse_unanswered(pending)
            pending = _calls(turn, used)
            if any(block["type"] == "tool_result" for _, block in turn.blocks):
                raise Refused(turn.path, "a tool_result may only stand in a user message")
        elif turn.role == "user":
            _take_results(turn, pending, after_call=index > 0 and turns[index - 1].role == "assistant")
            _refuse_unanswered(pending)
            pending = {}
        else:
            _refuse_unanswered(pending)
    _refuse_unanswered(pending)


def _calls(turn: Turn, used: set[str]) -> dict[str, str]:
    pending: dict[str, str] = {}
    for path, block in turn.blocks:
        if block["type"] == "tool_use":
            if block["id"] in used:
                raise Refused(join(path, "id"), f"tool_use ids must be unique, {block['id']!r} appears twice")
            used.add(block["id"])
            pending[block["id"]] = path
    return pending


def _take_results(turn: Turn, pending: dict[str, str], *, after_call: bool) -> None:
    answered: set[str] = set()
    other: str | None = None
    for path, block in turn.blocks:
        if block["type"] != "tool_result":
            other = other or path
            continue
        call = block["tool_use_id"]
        if call in answered:
            raise Refused(
                path, f"each tool_use must have a single result, found more than one for id {call!r}"
            )
        if call not in pending or not after_call:
            raise Refused(
                path,
                f"unexpected tool_use_id {call!r} in a tool_result: it has no tool_use in the message before",
            )
        if other is not None:
            raise Refused(path, f"tool_result blocks must come before any other content (found at {other})")
        answered.add(call)
        del pending[call]


def _refuse_unanswered(pending: dict[str, str]) -> None:
    if pending:
        path = next(iter(pending.values()))
        raise Refused(path, f"tool_use ids without a tool_result immediately after: {', '.join(pending)}")
