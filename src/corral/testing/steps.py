"""The steps that a script is made of: each is one response of the model, or a choice between responses.

The wire form is JSON with exactly the fields of `Step`; an unknown field is refused, so that a misspelt
script fails where it is written. See `README.md` beside this file for the format with examples.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, cast

import msgspec

from corral.testing.conversation import Conversation, ToolResult
from corral.testing.refusal import Refused


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call of a step. `id` is made up when it is not given."""

    name: str
    input: dict[str, Any] = {}
    id: str | None = None


class ErrorPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error in place of (or in the middle of) a response, for the first `times` attempts at the step.

    `at` is `start` (an HTTP error), `mid` (an `error` event inside the 200 stream, after half of the content)
    or `cut` (the connection is closed after half of the content, with no `message_stop`). `retry_after` is in
    seconds.
    """

    status: int = 529
    type: str | None = None
    message: str | None = None
    retry_after: float | None = None
    times: int = 1
    at: Literal["start", "mid", "cut"] = "start"


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`stop_details` of a response that ends with the stop reason `refusal`."""

    category: str | None = None
    explanation: str | None = None


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"else_": "else"}):
    """One response of the model. Times are in milliseconds.

    Content comes as thinking, redacted thinking, the unknown block, text, then tools; `content` replaces all
    of it with blocks as given. A step with an `if_...` field plays `then` if every condition holds, otherwise
    `else`, or its own fields when there is no `else`.
    """

    text: str | None = None
    thinking: str | None = None
    redacted_thinking: str | None = None
    tools: list[ToolCall] = []
    content: list[dict[str, Any]] | None = None
    stop_reason: str | None = None
    usage: dict[str, Any] = {}
    delay_ms: int = 0
    chunk_ms: int = 0
    chunk_chars: int = 12
    error: ErrorPlan | None = None
    refusal: Refusal | None = None
    hold: str | None = None
    hold_at: Literal["start", "mid"] = "start"
    pings: int = 1
    unknown_block: bool = False
    max_tokens_cut: bool = False
    if_result_contains: str | None = None
    if_result_is_error: bool | None = None
    if_text_contains: str | None = None
    if_system_contains: str | None = None
    then: Step | None = None
    else_: Step | None = None

    @property
    def is_choice(self) -> bool:
        """Whether the step has conditions."""
        return any(
            condition is not None
            for condition in (
                self.if_result_contains,
                self.if_result_is_error,
                self.if_text_contains,
                self.if_system_contains,
            )
        )

    def matches(self, conversation: Conversation) -> bool:
        """Whether every condition of the step holds."""
        results = conversation.results()
        checks = (
            self.if_result_contains is None
            or any(self.if_result_contains in result.text for result in results),
            self.if_result_is_error is None
            or any(result.is_error for result in results) is self.if_result_is_error,
            self.if_text_contains is None or self.if_text_contains in conversation.text,
            self.if_system_contains is None or self.if_system_contains in conversation.system,
        )
        return all(checks)


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A list of steps, with rules that go before them.

    A rule is a step with conditions; the first that matches plays in place of the step. `start` is the number
    of the step to begin with; `run` means nothing, and tells apart runs whose messages are otherwise the
    same.
    """

    steps: list[Step] = []
    rules: list[Step] = []
    name: str | None = None
    start: int = 0
    run: str | None = None


Playable = Callable[[Conversation, int], Step]
"""A script written in Python: given the conversation and the index of the directive's turn, the next step."""


def decode_script(value: Any, path: str = "script") -> Script:
    """A script from JSON: a `Script` object, a list of steps or a single step. Raises `Refused` if it is
    none.
    """
    try:
        if isinstance(value, list):
            return Script(steps=msgspec.convert(value, list[Step]))
        if isinstance(value, dict) and not {"steps", "rules", "name"}.isdisjoint(
            cast("dict[str, Any]", value)
        ):
            return msgspec.convert(value, Script)
        return Script(steps=[msgspec.convert(value, Step)])
    except msgspec.ValidationError as error:
        raise Refused(path, f"is not a script: {error}") from None


def choose(step: Step, conversation: Conversation) -> Step:
    """The step that plays: conditions are followed down to a step without any."""
    while step.is_choice:
        branch = step.then if step.matches(conversation) else step.else_
        if branch is None:
            break
        step = branch
    return step


_PLACE = re.compile(r"\{(result|text|step|result\[(\d+)\])\}")


def fill(step: Step, conversation: Conversation, index: int) -> Step:
    """The step with its templates filled: `{result}`, `{result[N]}`, `{text}` and `{step}` in every text and
    input.

    Other braces stay as they are. Raises `Refused` when `{result[N]}` asks for a result that is not there.
    """
    results = conversation.results()

    def place(match: re.Match[str]) -> str:
        match match[1]:
            case "result":
                return "\n".join(result.text for result in results)
            case "text":
                return conversation.text
            case "step":
                return str(index)
            case _:
                return _nth(results, int(match[2])).text

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return _PLACE.sub(place, value)
        if isinstance(value, list):
            return [walk(item) for item in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {key: walk(item) for key, item in cast("dict[str, Any]", value).items()}
        return value

    return msgspec.structs.replace(
        step,
        text=walk(step.text),
        thinking=walk(step.thinking),
        tools=[msgspec.structs.replace(call, input=walk(call.input)) for call in step.tools],
        content=walk(step.content),
    )


def _nth(results: list[ToolResult], index: int) -> ToolResult:
    if index >= len(results):
        raise Refused(
            "script", f"{{result[{index}]}} is asked for, but the last turn has {len(results)} results"
        )
    return results[index]
