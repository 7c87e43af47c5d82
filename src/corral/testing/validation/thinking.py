"""Extended thinking: its configuration, signatures, and the blocks that an open tool loop must give back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.testing import signing
from corral.testing.refusal import Refused
from corral.testing.validation.fields import (
    Check,
    anything,
    as_object,
    check_fields,
    integer,
    join,
    nullable,
    one_of,
)
from corral.testing.validation.turns import Turn, holds_results

MIN_BUDGET = 1024
"""Least `budget_tokens`."""
_THINKING = ("thinking", "redacted_thinking")


def thinking_is_on(body: Mapping[str, Any]) -> bool:
    """Whether the request turns thinking on."""
    return _kind(body) in ("enabled", "adaptive", "between_tools")


def _kind(body: Mapping[str, Any]) -> str | None:
    config: dict[str, Any] = body.get("thinking") or {}
    return config.get("type")


def check_config(body: dict[str, Any]) -> None:
    """The `thinking` field: a known type; a budget of at least 1,024 and below `max_tokens` tokens."""
    config = as_object(body["thinking"], "thinking")
    display: dict[str, Check] = {
        "display": nullable(one_of("summarized", "omitted")),
        "block_binding": anything,
    }
    required: dict[str, Check] = {"type": one_of("enabled", "adaptive", "disabled", "between_tools")}
    match config.get("type"):
        case "enabled":
            check_fields(
                config, "thinking", required={**required, "budget_tokens": integer}, optional=display
            )
            budget = config["budget_tokens"]
            if budget < MIN_BUDGET:
                raise Refused("thinking.budget_tokens", f"must be at least {MIN_BUDGET}")
            if "max_tokens" in body and budget >= body["max_tokens"]:
                raise Refused("max_tokens", "must be greater than thinking.budget_tokens")
        case "adaptive":
            check_fields(config, "thinking", required=required, optional=display)
        case _:
            check_fields(config, "thinking", required=required)


def check_signatures(turns: list[Turn], model: str) -> None:
    """Every thinking block, in any turn, is as this server wrote it for this model."""
    for turn in turns:
        if turn.role != "assistant":
            continue
        for path, block in turn.blocks:
            match block["type"]:
                case "thinking":
                    reason = signing.fault("thinking", model, block["thinking"], block["signature"])
                    field = "signature"
                case "redacted_thinking":
                    reason, field = signing.redaction_fault(model, block["data"]), "data"
                case _:
                    continue
            if reason is not None:
                raise Refused(join(path, field), reason)


def check_open_loop(body: dict[str, Any], turns: list[Turn], issued: Mapping[str, list[str]]) -> None:
    """Assistant turns of an open tool loop give back the thinking they came with, first and in order.

    `issued` maps the id of a tool call that this server wrote to the signatures of its message's thinking
    blocks. A call that came without thinking needs none, nor one from before this server's restart, save that
    with `thinking.type` `enabled` every such turn starts with a thinking block.
    """
    config = _kind(body)
    if config == "disabled" or not turns or not holds_results(turns[-1]):
        return
    for turn in _open_loop(turns):
        calls = [block["id"] for _, block in turn.blocks if block["type"] == "tool_use"]
        if not calls:
            continue
        given = [proof(block) for _, block in turn.blocks if block["type"] in _THINKING]
        path, first = turn.blocks[0]
        if config == "enabled" and first["type"] not in _THINKING:
            raise Refused(
                join(path, "type"), f"expected thinking or redacted_thinking, but found {first['type']}"
            )
        wanted = next((issued[call] for call in calls if call in issued), list[str]())
        if wanted and (given != wanted or first["type"] not in _THINKING):
            raise Refused(
                path,
                "the thinking blocks of an open tool loop must come back unchanged, in order and first",
            )


def proof(block: Mapping[str, Any]) -> str:
    """What identifies a thinking block: its signature, or the data of a redacted one."""
    return block["signature"] if block["type"] == "thinking" else block["data"]


def _open_loop(turns: list[Turn]) -> list[Turn]:
    opened = 0
    for index, turn in enumerate(turns):
        if turn.role == "user" and not holds_results(turn):
            opened = index
    return [turn for turn in turns[opened:] if turn.role == "assistant"]
