"""Requests that keep the rules of the Messages API pass as they are."""

import copy
from typing import Any

import pytest

from corral.testing.signing import redact
from corral.testing.validation.request import check_request
from tests.unit.testing.given_requests import (
    ASKED,
    ENABLED,
    HOUR,
    MARK,
    MODEL,
    OLD,
    TEXT,
    TOOL,
    assistant,
    body,
    loop,
    result,
    thinking,
    use,
    user,
)

ACCEPTED: dict[str, dict[str, Any]] = {
    "the least request": body(),
    "text as a string": body({"role": "user", "content": "hello"}),
    "consecutive user messages": body(ASKED, ASKED),
    "every current field": body(
        system=[{**TEXT, "cache_control": MARK}],
        stream=True,
        metadata={"user_id": "u"},
        stop_sequences=["END"],
        service_tier="auto",
        tools=[TOOL],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        output_config={"effort": "high"},
        speed="standard",
        inference_geo=None,
        context_management={"edits": []},
        mcp_servers=[],
        container=None,
        thinking={"type": "adaptive"},
        cache_control=MARK,
    ),
    "a tool loop": loop(use()),
    "results split over two user messages": body(
        ASKED, assistant(use("a"), use("b")), user(result("a")), user(result("b"))
    ),
    "results, then what the user said": body(ASKED, assistant(use()), user(result(), TEXT)),
    "an empty tool result": body(ASKED, assistant(use()), user(result(content=""))),
    "a failed tool result": body(ASKED, assistant(use()), user(result(is_error=True, content=[TEXT]))),
    "prefill where the model takes it": body(ASKED, assistant(TEXT), model=OLD),
    "a system turn after the user's": body(ASKED, {"role": "system", "content": "be brief"}),
    "a search result": body(
        user({"type": "search_result", "source": "s", "title": "t", "content": [TEXT], "citations": {}})
    ),
    "a server tool": body(tools=[{"type": "web_search_20260318", "name": "web_search"}]),
    "a forced tool without thinking": body(tools=[TOOL], tool_choice={"type": "tool", "name": "bash"}),
    "temperature by the older version": body(temperature=0.5),
    "four marks": body(user(*[{**TEXT, "cache_control": MARK}] * 4)),
    "an hour before five minutes": body(
        user({**TEXT, "cache_control": HOUR}, {**TEXT, "cache_control": MARK})
    ),
    "thinking as it was signed": loop(thinking(), use(), max_tokens=2000, thinking=ENABLED),
    "redacted thinking": loop({"type": "redacted_thinking", "data": redact(MODEL, "x")}, use()),
    "a closed turn without its thinking": body(
        ASKED, assistant(use()), user(result()), assistant(TEXT), ASKED, max_tokens=2000, thinking=ENABLED
    ),
    "null cache_control and citations": body(user({**TEXT, "cache_control": None, "citations": None})),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_request_that_keeps_the_rules_is_accepted(name: str) -> None:
    given = copy.deepcopy(ACCEPTED[name])

    assert check_request(given, version="2023-06-01") == ACCEPTED[name]
