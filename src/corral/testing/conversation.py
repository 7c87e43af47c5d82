"""A request read as a conversation: what a script needs to know to choose its next step. No I/O, no state."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from corral.testing.validation.turns import Turn, merge


@dataclass(frozen=True)
class ToolResult:
    """A tool call and its answer. `text` joins the answer's text blocks; other blocks show as `[type]`."""

    name: str
    input: dict[str, Any]
    text: str
    is_error: bool


@dataclass(frozen=True)
class Conversation:
    """The messages of one request, merged into turns, with its system prompt and tools."""

    body: Mapping[str, Any]
    turns: Sequence[Turn]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Conversation:
        """Reads a request that has passed `check_request`."""
        return cls(body=body, turns=merge(body["messages"]))

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.body["model"]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions of the request."""
        return self.body.get("tools") or []

    @property
    def tool_names(self) -> set[str]:
        """Names of the tools that may be called."""
        return {tool["name"] for tool in self.tools if "name" in tool}

    @property
    def system(self) -> str:
        """The system prompt as one text."""
        return plain_text(self.body.get("system"))

    @property
    def text(self) -> str:
        """Text of the last user turn that has any, without tool results."""
        for turn in reversed(self.turns):
            text = _turn_text(turn)
            if turn.role == "user" and text:
                return text
        return ""

    @property
    def new_text(self) -> str:
        """Text that the user said in the last turn; empty when it holds tool results alone."""
        return _turn_text(self.turns[-1]) if self.turns[-1].role == "user" else ""

    def results(self, turn: int = -1) -> list[ToolResult]:
        """Answers to tool calls in the user turn at index `turn`, in the order of the calls."""
        at = turn % len(self.turns)
        if self.turns[at].role != "user" or at == 0:
            return []
        answers = {
            block["tool_use_id"]: block
            for _, block in self.turns[at].blocks
            if block["type"] == "tool_result"
        }
        return [
            ToolResult(
                name=call["name"],
                input=call["input"],
                text=plain_text(answers[call["id"]].get("content")),
                is_error=bool(answers[call["id"]].get("is_error")),
            )
            for _, call in self.turns[at - 1].blocks
            if call["type"] == "tool_use" and call["id"] in answers
        ]

    def history(self, start: int) -> list[ToolResult]:
        """Every answered tool call after the turn at index `start`, oldest first."""
        return [result for at in range(start + 1, len(self.turns)) for result in self.results(at)]

    def steps_after(self, start: int) -> int:
        """How many turns the assistant has taken after the turn at index `start`."""
        return sum(turn.role == "assistant" for turn in self.turns[start + 1 :])

    def prefix_key(self, stop: int) -> str:
        """A hash of the turns up to and including index `stop`, without cache marks."""
        prefix = [
            (turn.role, [without_mark(block) for _, block in turn.blocks]) for turn in self.turns[: stop + 1]
        ]
        return hashlib.sha256(json.dumps(prefix, sort_keys=True).encode()).hexdigest()


def plain_text(content: Any) -> str:
    """The text of a string or of a list of blocks, one block a line; blocks without text show as `[type]`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    blocks = cast("list[dict[str, Any]]", content)
    return "\n".join(block["text"] if block["type"] == "text" else f"[{block['type']}]" for block in blocks)


def without_mark(block: Mapping[str, Any]) -> dict[str, Any]:
    """The block without its `cache_control`, which is no part of what the model reads."""
    bare = {key: value for key, value in block.items() if key != "cache_control"}
    if isinstance(bare.get("content"), list):
        bare["content"] = [without_mark(item) for item in bare["content"]]
    return bare


def _turn_text(turn: Turn) -> str:
    return "\n".join(block["text"] for _, block in turn.blocks if block["type"] == "text")
