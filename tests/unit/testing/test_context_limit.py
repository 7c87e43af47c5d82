"""The scripted model has a context that ends, and takes `context_management` in its documented form alone."""

from typing import Any

import httpx
import pytest

from corral.testing import ScriptedModel
from corral.testing.refusal import Refused
from corral.testing.validation.context import BETA, TooLong, check_context_management, check_length

TOOL_USES: dict[str, Any] = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "input_tokens", "value": 9},
    "keep": {"type": "tool_uses", "value": 2},
}
THINKING: dict[str, Any] = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}


def test_a_request_may_fill_the_context_and_not_a_token_more() -> None:
    check_length(100, 100)
    check_length(10**9, None)
    with pytest.raises(TooLong, match=r"prompt is too long: 101 tokens > 100 maximum"):
        check_length(101, 100)


def test_edits_are_taken_with_their_beta_header_in_their_order() -> None:
    check_context_management({"context_management": {"edits": [THINKING, TOOL_USES]}}, f"x, {BETA}")
    check_context_management({}, "")


@pytest.mark.parametrize(
    ("edits", "betas"),
    [
        ([TOOL_USES], ""),
        ([TOOL_USES, THINKING], BETA),
        ([{"type": "forget_everything"}], BETA),
        ([{**TOOL_USES, "much": 1}], BETA),
        ([{**TOOL_USES, "keep": {"type": "tool_uses", "value": -1}}], BETA),
    ],
)
def test_other_edits_are_refused(edits: list[Any], betas: str) -> None:
    with pytest.raises(Refused):
        check_context_management({"context_management": {"edits": edits}}, betas)


async def test_what_is_too_long_is_counted_apart_from_refusals() -> None:
    async with ScriptedModel() as model:
        model.limit_context(5)
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "words " * 20}]}
        async with httpx.AsyncClient(base_url=model.base_url, headers={"x-api-key": "k"}) as client:
            answer = await client.post("/v1/messages", json=body)
        assert (answer.status_code, model.stats["too_long"]) == (400, 1)
        model.assert_no_refusals()
        model.reset()
        assert model.stats["too_long"] == 0
