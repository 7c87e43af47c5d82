"""Turns a chosen step into the message that the Messages API would answer with: blocks, stop reason and
usage.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corral.testing import signing
from corral.testing.prefix_cache import BYTES_PER_TOKEN, Usage, tokens_of
from corral.testing.steps import Step
from corral.testing.validation.blocks import NOVEL_BLOCK

_ALPHABET = string.ascii_letters + string.digits
AUTOMATIC_THINKING = "I weigh what was asked against what I know and take the next step."
"""Thinking of a step that scripts none, under `thinking.type` `enabled`, where a model always thinks."""


@dataclass(frozen=True)
class Reply:
    """A whole response. `torn` says that the last block is a tool call cut by `max_tokens`."""

    message: dict[str, Any]
    torn: bool

    @property
    def thinking_proofs(self) -> list[str]:
        """Signatures of the thinking blocks, in order."""
        return [
            block.get("signature") or block.get("data")
            for block in self.message["content"]
            if block["type"] in ("thinking", "redacted_thinking")
        ]

    @property
    def call_ids(self) -> list[str]:
        """Ids of the tool calls, in order."""
        return [block["id"] for block in self.message["content"] if block["type"] == "tool_use"]


def make_id(prefix: str) -> str:
    """A fresh id such as `toolu_01...`."""
    return f"{prefix}_01{''.join(secrets.choice(_ALPHABET) for _ in range(22))}"


def build(step: Step, body: Mapping[str, Any], usage: Usage) -> Reply:
    """The reply to the request `body` that `step` describes, cut as `max_tokens` and stop sequences ask."""
    content = _content(step, body)
    stop, sequence = _stop_sequence(content, body)
    torn = False
    if step.max_tokens_cut:
        torn = _cut_last(content)
        stop = "max_tokens"
    elif sum(_weight(block) for block in content) > body["max_tokens"]:
        torn = _cut_to(content, body["max_tokens"])
        stop = "max_tokens"
    if step.refusal is not None:
        stop = "refusal"
    calls = any(block["type"] == "tool_use" for block in content)
    message: dict[str, Any] = {
        "id": make_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": step.stop_reason or stop or ("tool_use" if calls else "end_turn"),
        "stop_sequence": sequence if stop == "stop_sequence" else None,
        "usage": {**_usage(usage, content), **step.usage},
    }
    if step.refusal is not None:
        message["stop_details"] = {
            "type": "refusal",
            "category": step.refusal.category,
            "explanation": step.refusal.explanation,
        }
    return Reply(message, torn)


def _content(step: Step, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    model: str = body["model"]
    config: dict[str, Any] = body.get("thinking") or {}
    if step.content is not None:
        return [_completed(block, model) for block in step.content]
    content: list[dict[str, Any]] = []
    thinking = step.thinking
    if thinking is None and step.redacted_thinking is None and config.get("type") == "enabled":
        thinking = AUTOMATIC_THINKING
    if config.get("type") != "disabled":
        if thinking is not None:
            shown = "" if config.get("display") == "omitted" else thinking
            content.append(_completed({"type": "thinking", "thinking": shown}, model))
        if step.redacted_thinking is not None:
            data = signing.redact(model, step.redacted_thinking)
            content.append({"type": "redacted_thinking", "data": data})
    if step.unknown_block:
        payload = "a block that no client knows"
        content.append(
            {
                "type": NOVEL_BLOCK,
                "payload": payload,
                "signature": signing.sign(NOVEL_BLOCK, model, payload),
            }
        )
    if step.text is not None:
        content.append({"type": "text", "text": step.text})
    for call in step.tools:
        use = {"type": "tool_use", "name": call.name, "input": call.input}
        content.append(_completed({**use, "id": call.id} if call.id else use, model))
    return content


def _completed(block: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The block with what a script may leave out: ids and signatures."""
    match block.get("type"):
        case "thinking" if "signature" not in block:
            return {**block, "signature": signing.sign("thinking", model, block["thinking"])}
        case "tool_use" if "id" not in block:
            named = {key: value for key, value in block.items() if key != "type"}
            return {"type": "tool_use", "id": make_id("toolu"), **named}
        case _:
            return dict(block)


def _stop_sequence(content: list[dict[str, Any]], body: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Cuts the content before the first stop sequence in its text."""
    sequences: list[str] = body.get("stop_sequences") or []
    for index, block in enumerate(content):
        if block["type"] != "text":
            continue
        found = [(block["text"].find(one), one) for one in sequences if one in block["text"]]
        if found:
            at, sequence = min(found)
            content[index] = {**block, "text": block["text"][:at]}
            del content[index + 1 :]
            return "stop_sequence", sequence
    return None, None


def _weight(block: Mapping[str, Any]) -> int:
    match block["type"]:
        case "text":
            return tokens_of(block["text"]) if block["text"] else 0
        case "thinking":
            return tokens_of(block["thinking"]) if block["thinking"] else 0
        case "tool_use":
            return tokens_of([block["name"], block["input"]])
        case _:
            return tokens_of(block)


def _cut_last(content: list[dict[str, Any]]) -> bool:
    """Cuts the last block in half; true when it is a tool call, whose input the stream then tears."""
    if content and content[-1]["type"] == "text":
        text = content[-1]["text"]
        content[-1] = {**content[-1], "text": text[: max(1, len(text) // 2)]}
    return bool(content) and content[-1]["type"] == "tool_use"


def _cut_to(content: list[dict[str, Any]], budget: int) -> bool:
    """Cuts the content to `budget` tokens; true when the last block left is a tool call with a torn input.

    A thinking block is kept whole, because half of one would have no signature.
    """
    for index, block in enumerate(content):
        weight = _weight(block)
        if weight > budget:
            del content[index + 1 :]
            if block["type"] == "text":
                content[index] = {**block, "text": block["text"][: max(1, budget * BYTES_PER_TOKEN)]}
            return block["type"] == "tool_use"
        budget -= weight
    return False


def _usage(usage: Usage, content: list[dict[str, Any]]) -> dict[str, Any]:
    thinking = sum(_weight(block) for block in content if block["type"] in ("thinking", "redacted_thinking"))
    return {
        "input_tokens": usage.input_tokens,
        "cache_creation_input_tokens": usage.created_5m + usage.created_1h,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.created_5m,
            "ephemeral_1h_input_tokens": usage.created_1h,
        },
        "output_tokens": max(1, sum(map(_weight, content))),
        "output_tokens_details": {"thinking_tokens": thinking},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": "not_available",
    }
