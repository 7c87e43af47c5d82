"""The whole request: its top-level fields, then every subject in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.testing.refusal import Refused
from corral.testing.validation import thinking
from corral.testing.validation.caching import cache_control, check_marks
from corral.testing.validation.fields import (
    Check,
    a_list,
    an_object,
    anything,
    as_object,
    boolean,
    check_fields,
    filled_string,
    integer,
    list_of,
    nullable,
    number,
    one_of,
    refuse_missing,
    string,
)
from corral.testing.validation.media import check_many_images
from corral.testing.validation.messages import check_last, check_messages, system_prompt
from corral.testing.validation.tools import check_tools
from corral.testing.validation.turns import check_pairing, merge

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Largest request body."""
SAMPLING_REMOVED = "2026-10-21"
"""From this `anthropic-version` on, temperature, top_p and top_k are refused (behaviour.md, section 2.1)."""
_SAMPLING: dict[str, Check] = {"temperature": number(0, 1), "top_p": number(0, 1), "top_k": integer}


def _metadata(value: Any, path: str) -> None:
    check_fields(as_object(value, path), path, optional={"user_id": nullable(string)})


def _output_config(value: Any, path: str) -> None:
    fields: dict[str, Check] = {
        "effort": nullable(one_of("low", "medium", "high", "xhigh", "max")),
        "format": nullable(an_object),
        "task_budget": nullable(an_object),
    }
    check_fields(as_object(value, path), path, optional=fields)


def _positive(value: Any, path: str) -> None:
    integer(value, path)
    if value < 1:
        raise Refused(path, "must be greater than or equal to 1")


_REQUIRED: dict[str, Check] = {"model": filled_string, "messages": a_list}
_COUNTED: dict[str, Check] = {
    "billing_policy": nullable(an_object),
    "cache_control": nullable(cache_control),
    "compaction": nullable(an_object),
    "context_management": nullable(an_object),
    "mcp_servers": list_of(an_object),
    "output_config": _output_config,
    "speed": nullable(one_of("standard", "fast")),
    "system": system_prompt,
    "thinking": an_object,
    "tool_choice": an_object,
    "tools": a_list,
    "user_profile_id": string,
    "workspace_id": string,
}
_CREATED: dict[str, Check] = {
    **_COUNTED,
    "container": anything,
    "diagnostics": nullable(an_object),
    "fallback_credit_token": nullable(anything),
    "fallbacks": nullable(anything),
    "inference_geo": nullable(string),
    "metadata": _metadata,
    "service_tier": one_of("auto", "standard_only"),
    "stop_sequences": list_of(filled_string),
    "stream": boolean,
    "thread": nullable(an_object),
}


def check_request(
    value: Any,
    *,
    counting: bool = False,
    version: str | None = None,
    issued: Mapping[str, list[str]] | None = None,
) -> dict[str, Any]:
    """Checks a decoded body and returns it.

    `counting` applies the rules of `count_tokens`, which has fewer fields. `version` is the
    `anthropic-version` header. `issued` is described in `thinking.check_open_loop`. Raises `Refused` at the
    first fault.
    """
    body = as_object(value, "")
    required = dict(_REQUIRED) if counting else {**_REQUIRED, "max_tokens": _positive}
    refuse_missing(body, "", required)
    if version is not None and version >= SAMPLING_REMOVED:
        for name in _SAMPLING:
            if name in body:
                raise Refused(name, f"is not part of the API from anthropic-version {SAMPLING_REMOVED} on")
    optional = _COUNTED if counting else {**_CREATED, **_SAMPLING}
    check_fields(body, "", required=required, optional=optional)
    check_messages(body["messages"], body["model"])
    if "thinking" in body:
        thinking.check_config(body)
    check_tools(body)
    turns = merge(body["messages"])
    check_pairing(turns)
    check_last(turns, body)
    thinking.check_signatures(turns, body["model"])
    thinking.check_open_loop(body, turns, issued or {})
    check_marks(body)
    check_many_images(body)
    return body
