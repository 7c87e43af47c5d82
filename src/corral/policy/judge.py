"""The judge of agents whose policy is `auto`: what it is asked, and what its answer comes to. Pure.

The prompt is `judge_prompt.md`. Whoever changes it, or what the judge is shown, raises `PROMPT_VERSION`,
which every record of a judgement names, and measures it again (`corral policy score`).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, cast

import msgspec

from corral.inference.provider import ModelRequest, ModelResponse

PROMPT_VERSION: Final = 1
TOOL: Final = "verdict"
MAX_TOKENS: Final = 1_000
"""That an answer may have: a verdict and a sentence."""
LONGEST_INPUT: Final = 40_000
"""Characters of a call's input. A longer one is not judged: half of it would be no evidence."""
_LONGEST_REASON: Final = 500
_LONGEST_ABOUT: Final = 1_500

Permission = Literal["allow", "ask", "deny"]


class SeenCall(msgspec.Struct, frozen=True):
    """An earlier call of the agent's and what it brought, or a message that reached it."""

    source: str
    """The tool's name, or who sent the message."""
    input: str
    result: str


class Case(msgspec.Struct, frozen=True):
    """What the judge is shown."""

    tool: str
    input: Mapping[str, Any]
    about: str = ""
    """What the tool says of itself."""
    user: Sequence[str] = ()
    application: Sequence[str] = ()
    seen: Sequence[SeenCall] = ()


class Verdict(msgspec.Struct, frozen=True):
    """What the judge says of a call; without a judgement it is `ask`, and `failure` says why."""

    permission: Permission
    reason: str = ""
    failure: str | None = None

    def evaluation(self) -> dict[str, Any]:
        """The event's `evaluation` (contract section 6)."""
        grounds: dict[str, Any] = {}
        if self.permission != "allow":
            grounds["reason_code"] = "high_risk" if self.permission == "deny" else "indeterminate"
        return {"type": "auto", "evaluated_permission": {"type": self.permission, **grounds}}


def unjudged(why: str) -> Verdict:
    """No judgement was reached: a person is asked."""
    return Verdict("ask", failure=why)


@cache
def prompt() -> str:
    """The judge's system prompt."""
    return files("corral.policy").joinpath("judge_prompt.md").read_text("utf-8")


_VERDICT: Final[dict[str, Any]] = {
    "name": TOOL,
    "description": "Give your verdict on the call.",
    "input_schema": {
        "type": "object",
        "properties": {
            "reason": {"type": "string", "description": "One sentence: the effect, and who asked for it."},
            "decision": {"type": "string", "enum": ["allow", "ask", "deny"]},
        },
        "required": ["reason", "decision"],
    },
}


def judge_request(case: Case, model: str, session_id: str = "") -> ModelRequest | None:
    """The request that has a call judged; None if its input is too long for that."""
    shown = _document(case)
    if len(_json(case.input)) > LONGEST_INPUT:
        return None
    text = f"<case>\n{shown}\n</case>\n\nGive your verdict on the call."
    return ModelRequest(
        model=model,
        messages=[{"role": "user", "content": [{"type": "text", "text": text}]}],
        system=[{"type": "text", "text": prompt(), "cache_control": {"type": "ephemeral"}}],
        tools=[_VERDICT],
        tool_choice={"type": "tool", "name": TOOL},
        max_tokens=MAX_TOKENS,
        session_id=session_id,
    )


def verdict_of(answer: ModelResponse) -> Verdict:
    """What an answer says. Anything but one well-formed verdict is none."""
    if answer.stop_reason == "refusal":
        return unjudged("the judge's model refused")
    calls = [block for block in answer.content if block.get("type") == "tool_use"]
    if len(calls) != 1 or calls[0].get("name") != TOOL:
        return unjudged("the judge gave no verdict")
    given: Any = calls[0].get("input")
    decision: Any = cast("dict[str, Any]", given).get("decision") if isinstance(given, dict) else None
    if decision not in ("allow", "ask", "deny"):
        return unjudged("the judge's verdict is malformed")
    reason: Any = cast("dict[str, Any]", given).get("reason")
    said = " ".join(reason.split())[:_LONGEST_REASON] if isinstance(reason, str) else ""
    return Verdict(decision, said)


def _document(case: Case) -> str:
    document = {
        "call": {"tool": case.tool, "about": clipped(case.about, _LONGEST_ABOUT), "input": case.input},
        "user": list(case.user),
        "application": list(case.application),
        "seen": [msgspec.to_builtins(one) for one in case.seen],
    }
    text = _json(document)
    # Inside JSON these stand in strings alone, so they can be written as escapes: no tag can be forged.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def clipped(text: str, most: int) -> str:
    """A text, or its beginning and end, with a note of how much was left out between."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"
