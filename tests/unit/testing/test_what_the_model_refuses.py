"""One case per rule of the Messages API: a request that breaks it is refused, with path and reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from corral.testing.refusal import Refused
from corral.testing.validation.request import check_request
from tests.unit.testing.given_requests import (
    ASKED,
    ENABLED,
    HOUR,
    MARK,
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
    without,
)

REFUSED: list[tuple[str, Any, str, str]] = [
    ("no model", without("model"), "model", "required"),
    ("no max_tokens", without("max_tokens"), "max_tokens", "required"),
    ("no messages", without("messages"), "messages", "required"),
    ("a body that is no object", [], "", "object"),
    ("max_tokens of nothing", body(max_tokens=0), "max_tokens", "greater"),
    ("max_tokens that is no integer", body(max_tokens=True), "max_tokens", "integer"),
    ("empty messages", {**body(), "messages": []}, "messages", "at least one"),
    ("an unknown field", body(colour="red"), "colour", "unknown field"),
    ("an unknown field of a message", body({**ASKED, "id": "1"}), "messages.0.id", "unknown field"),
    (
        "an unknown field of a block",
        body(user({**TEXT, "id": "1"})),
        "messages.0.content.0.id",
        "unknown field",
    ),
    ("an unknown role", body({"role": "tool", "content": "x"}), "messages.0.role", "must be one of"),
    ("the assistant first", body(assistant(TEXT), ASKED), "messages.0.role", "first message"),
    ("no content", body(user()), "messages.0.content", "at least one"),
    ("an empty text", body({"role": "user", "content": ""}), "messages.0.content", "empty"),
    ("an empty text block", body(user({"type": "text", "text": ""})), "messages.0.content.0.text", "empty"),
    (
        "a blank text block",
        body(user({"type": "text", "text": " \n"})),
        "messages.0.content.0.text",
        "whitespace",
    ),
    ("an unknown block", body(user({"type": "poem"})), "messages.0.content.0.type", "not a block type"),
    ("a block without type", body(user({"text": "x"})), "messages.0.content.0.type", "required"),
    ("a tool call by the user", body(user(use())), "messages.0.content.0.type", "not a block type"),
    ("an empty system block", body(system=[{"type": "text", "text": ""}]), "system.0.text", "empty"),
    ("a system number", body(system=1), "system", "list"),
    ("prefill where the model takes none", body(ASKED, assistant(TEXT)), "messages.1", "prefill"),
    (
        "prefill that ends in white space",
        body(ASKED, assistant({"type": "text", "text": "so "}), model=OLD),
        "messages.1.content.0",
        "white space",
    ),
    (
        "a system turn first",
        body({"role": "system", "content": "x"}, ASKED),
        "messages.0.role",
        "directly follow a user",
    ),
    (
        "a system turn that the model does not take",
        body(ASKED, {"role": "system", "content": "x"}, model=OLD),
        "messages.1.role",
        "does not support",
    ),
    ("temperature of the newer version", body(temperature=1), "temperature", "2026-10-21"),
    # Tools
    ("a bad tool name", body(tools=[{**TOOL, "name": "a b"}]), "tools.0.name", "must match"),
    ("a tool twice", body(tools=[TOOL, TOOL]), "tools.1.name", "unique"),
    ("no input_schema", body(tools=[{"name": "x"}]), "tools.0.input_schema", "required"),
    (
        "a schema without type",
        body(tools=[{"name": "x", "input_schema": {}}]),
        "tools.0.input_schema.type",
        "req",
    ),
    (
        "a schema that is no object",
        body(tools=[{"name": "x", "input_schema": {"type": "array"}}]),
        "tools.0.input_schema.type",
        "must be object",
    ),
    (
        "anyOf at the top of a schema",
        body(tools=[{"name": "x", "input_schema": {"type": "object", "anyOf": []}}]),
        "tools.0.input_schema.anyOf",
        "top level",
    ),
    (
        "a bad property name",
        body(tools=[{"name": "x", "input_schema": {"type": "object", "properties": {"a b": {}}}}]),
        "tools.0.input_schema.properties",
        "property names",
    ),
    ("an unknown tool type", body(tools=[{"type": "magic", "name": "x"}]), "tools.0.type", "not a tool type"),
    ("an unknown field of a tool", body(tools=[{**TOOL, "x": 1}]), "tools.0.x", "unknown field"),
    (
        "tool_choice of an unknown tool",
        body(tools=[TOOL], tool_choice={"type": "tool", "name": "cat"}),
        "tool_choice.name",
        "not among",
    ),
    ("tool_choice without tools", body(tool_choice={"type": "any"}), "tool_choice", "together with tools"),
    (
        "a forced tool with thinking",
        body(tools=[TOOL], tool_choice={"type": "any"}, thinking={"type": "adaptive"}),
        "tool_choice.type",
        "thinking",
    ),
    # Pairing
    (
        "a call without result",
        body(ASKED, assistant(use()), ASKED),
        "messages.1.content.0",
        "without a tool_result",
    ),
    ("a call at the end", body(ASKED, assistant(use()), model=OLD), "messages.1.content.0", "without"),
    (
        "one of two calls without result",
        body(ASKED, assistant(use("a"), use("b")), user(result("a"))),
        "messages.1.content.1",
        "b",
    ),
    ("a result without call", body(user(result())), "messages.0.content.0", "unexpected tool_use_id"),
    (
        "a result of an earlier call",
        body(ASKED, assistant(use()), user(result()), assistant(TEXT), user(result())),
        "messages.4.content.0",
        "unexpected tool_use_id",
    ),
    (
        "a result twice",
        body(ASKED, assistant(use()), user(result(), result())),
        "messages.2.content.1",
        "single",
    ),
    (
        "a result after text",
        body(ASKED, assistant(use()), user(TEXT, result())),
        "messages.2.content.1",
        "before",
    ),
    (
        "a call id twice",
        body(ASKED, assistant(use(), use()), user(result())),
        "messages.1.content.1.id",
        "unique",
    ),
    (
        "a call id of an earlier turn",
        body(ASKED, assistant(use()), user(result()), assistant(use()), user(result())),
        "messages.3.content.0.id",
        "unique",
    ),
    (
        "a system turn between call and result",
        body(ASKED, assistant(use()), {"role": "system", "content": "x"}, user(result())),
        "messages.2.role",
        "directly follow",
    ),
    (
        "a block that a result cannot hold",
        body(ASKED, assistant(use()), user(result(content=[use()]))),
        "messages.2.content.0.content.0.type",
        "not a block type",
    ),
    (
        "is_error that is no boolean",
        body(ASKED, assistant(use()), user(result(is_error="yes"))),
        "messages.2.content.0.is_error",
        "boolean",
    ),
    (
        "an empty text in a result",
        body(ASKED, assistant(use()), user(result(content=[{"type": "text", "text": ""}]))),
        "messages.2.content.0.content.0.text",
        "empty",
    ),
    (
        "a document in a failed result",
        body(
            ASKED,
            assistant(use()),
            user(
                result(
                    is_error=True,
                    content=[
                        {
                            "type": "document",
                            "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                        }
                    ],
                )
            ),
        ),
        "messages.2.content.0.content.0",
        "must be text",
    ),
    # Caching
    ("five marks", body(user(*[{**TEXT, "cache_control": MARK}] * 5)), "messages.0.content.4", "at most 4"),
    (
        "four marks and the automatic one",
        body(user(*[{**TEXT, "cache_control": MARK}] * 4), cache_control=MARK),
        "cache_control",
        "at most 4",
    ),
    (
        "a mark on an empty text",
        body(user({"type": "text", "text": "", "cache_control": MARK})),
        "messages.0.content.0.cache_control",
        "empty text",
    ),
    (
        "a mark on thinking",
        loop(thinking(cache_control=MARK), use()),
        "messages.1.content.0.cache_control",
        "thinking",
    ),
    (
        "five minutes before an hour",
        body(user({**TEXT, "cache_control": MARK}, {**TEXT, "cache_control": HOUR})),
        "messages.0.content.1.cache_control.ttl",
        "1h",
    ),
    (
        "an unknown ttl",
        body(user({**TEXT, "cache_control": {"type": "ephemeral", "ttl": "2h"}})),
        "messages.0.content.0.cache_control.ttl",
        "must be one of",
    ),
    # Thinking
    (
        "a small thinking budget",
        body(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 100}),
        "thinking.budget_tokens",
        "at least 1024",
    ),
    ("a budget over max_tokens", body(thinking=ENABLED), "max_tokens", "greater"),
    ("an unknown thinking type", body(thinking={"type": "deep"}), "thinking.type", "must be one of"),
    (
        "thinking without signature",
        loop({"type": "thinking", "thinking": "x"}, use()),
        "messages.1.content.0.",
        "req",
    ),
    (
        "changed thinking",
        loop({**thinking(), "thinking": "other"}, use()),
        "messages.1.content.0.signature",
        "changed",
    ),
    (
        "thinking of another model",
        loop(thinking(model=OLD), use()),
        "messages.1.content.0.signature",
        "another model",
    ),
    (
        "a made-up signature",
        loop({**thinking(), "signature": "?"}, use()),
        "messages.1.content.0.signature",
        "invalid signature",
    ),
    (
        "an open loop without its thinking",
        loop(use(), max_tokens=2000, thinking=ENABLED),
        "messages.1.content.0.type",
        "expected thinking",
    ),
    (
        "an open loop with text before its thinking",
        loop(TEXT, thinking(), use(), max_tokens=2000, thinking=ENABLED),
        "messages.1.content.0.type",
        "expected thinking",
    ),
]


@pytest.mark.parametrize(("name", "given", "path", "reason"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_request_that_breaks_a_rule_is_refused_with_path_and_reason(
    name: str, given: Any, path: str, reason: str
) -> None:
    with pytest.raises(Refused) as refused:
        check_request(copy.deepcopy(given), version="2026-10-21")

    assert refused.value.path.startswith(path)
    assert refused.value.path == path or path.endswith(".")
    assert reason in refused.value.reason
    assert refused.value.status == 400


def test_thinking_of_a_call_that_came_with_it_must_come_back_in_order() -> None:
    first, second = thinking("one"), thinking("two")
    issued = {"toolu_1": [first["signature"], second["signature"]]}

    check_request(loop(first, second, use(), thinking={"type": "adaptive"}), issued=issued)
    for blocks in ([use()], [second, first, use()], [first, use()]):
        with pytest.raises(Refused, match="thinking blocks of an open tool loop"):
            check_request(loop(*blocks, thinking={"type": "adaptive"}), issued=issued)


def test_counting_takes_no_fields_that_concern_the_answer() -> None:
    counted = without("max_tokens")

    check_request(counted, counting=True)
    with pytest.raises(Refused, match="max_tokens"):
        check_request(body(), counting=True)
