"""The agent that plays when the conversation names no script."""

from __future__ import annotations

from typing import Any

import pytest

from corral.testing.conversation import Conversation
from corral.testing.scripts import converse
from corral.testing.scripts.converse import commands

BASH = {"name": "bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}
CLOCK: dict[str, Any] = {"name": "current_time", "input_schema": {"type": "object", "properties": {}}}
WEATHER = {
    "name": "mcp__sky__getWeather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "days", "unit"],
    },
}


def conversation(*messages: dict[str, Any], tools: list[dict[str, Any]]) -> Conversation:
    return Conversation.of({"model": "m", "max_tokens": 10, "messages": list(messages), "tools": tools})


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_it_repeats_what_was_said() -> None:
    step = converse.step(conversation(user("Hello there"), tools=[BASH]), -1)

    assert step.text == "You said: Hello there"
    assert step.tools == []


def test_it_calls_the_tool_that_is_named_and_runs_the_command_in_parallel() -> None:
    text = "What is the current time? Also run pwd to show me the working directory."
    step = converse.step(conversation(user(text), tools=[BASH, CLOCK, WEATHER]), -1)

    assert [(call.name, call.input) for call in step.tools] == [
        ("current_time", {}),
        ("bash", {"command": "pwd"}),
    ]


def test_it_then_answers_with_every_result() -> None:
    calls: list[dict[str, Any]] = [
        {"type": "tool_use", "id": "a", "name": "current_time", "input": {}},
        {"type": "tool_use", "id": "b", "name": "bash", "input": {"command": "pwd"}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "/workspace"}]},
        {"type": "tool_result", "tool_use_id": "a", "content": "noon", "is_error": True},
    ]
    step = converse.step(
        conversation(
            user("run pwd"),
            {"role": "assistant", "content": calls},
            {"role": "user", "content": results},
            tools=[BASH],
        ),
        -1,
    )

    assert step.tools == []
    assert step.text == "Here is what I found.\n- current_time failed: noon\n- bash (pwd): /workspace"


def test_it_fills_only_what_the_schema_requires() -> None:
    step = converse.step(conversation(user("Get the weather"), tools=[WEATHER]), -1)

    assert [call.input for call in step.tools] == [{"city": "example", "days": 1, "unit": "C"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run pwd", ["pwd"]),
        ("Run `ls -la | wc -l` and then run `date`.", ["ls -la | wc -l", "date"]),
        ("please run cat /etc/os-release. Thanks", ["cat /etc/os-release"]),
        ("run ls and run pwd", ["ls", "pwd"]),
        ("I went for a run", []),
        ("write it and run it", []),
    ],
)
def test_commands_are_read_from_the_text(text: str, expected: list[str]) -> None:
    assert commands(text) == expected


def test_it_runs_nothing_without_bash() -> None:
    assert converse.step(conversation(user("run pwd"), tools=[]), -1).tools == []
