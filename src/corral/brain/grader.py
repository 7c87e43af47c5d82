"""The grader of outcomes: its prompt (outcome_prompt.md), its tools, and how its answers are read. Pure.

It is asked in a context of its own (contract section 14). What it is shown is `Evidence`; what it answers is
a verdict, a wish to read on, or nothing of use. Whoever changes the prompt or a tool raises `VERSION`, which
stands beside every verdict in the log.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, Literal, cast

import msgspec

from corral.brain.transcript import given_back
from corral.inference.provider import ModelRequest, ModelResponse

VERSION: Final = 1
VERDICT: Final = "submit_verdict"
READ: Final = "read_deliverable"
PART: Final = 30_000
"""Characters of a deliverable that are shown at once."""
MOST_READS: Final = 12
"""Answers in one evaluation that only read; after them the verdict is called for."""
_EXPLANATION: Final = 16_000
_CRITERIA: Final = 100
_CRITERION: Final = 1_000

Result = Literal["satisfied", "needs_revision", "failed"]
Block = dict[str, Any]


class Deliverable(msgspec.Struct, frozen=True):
    """A file that was handed over, and as much of it as is shown at once."""

    path: str
    mime_type: str
    size: int
    text: str | None = None
    """Its beginning, if it is text."""
    left: int = 0
    """Characters of it that are not shown."""
    media: Block | None = None
    """An image or a document."""


class Round(msgspec.Struct, frozen=True):
    """An answer of the grader's that was no verdict, and what it was told."""

    content: list[Block]
    results: dict[str, Block]
    """By the id of the call: ``text`` and ``is_error``."""
    note: str = ""
    model: str = ""


class Evidence(msgspec.Struct, frozen=True):
    """What the grader is shown."""

    mark: str
    """What sets material apart; whoever wrote the material cannot have known it."""
    description: str
    rubric: str
    iteration: int
    max_iterations: int
    earlier: str
    """What the evaluation before has found; empty for the first."""
    deliverables: Sequence[Deliverable]
    unlisted: int
    """How many further deliverables there are."""
    last_words: str
    record: str
    rounds: Sequence[Round] = ()


class Verdict(msgspec.Struct, frozen=True):
    """What the grader has found."""

    result: Result
    explanation: str


class Wish(msgspec.Struct, frozen=True):
    """A part of a deliverable that the grader wants to read."""

    call_id: str
    path: str
    offset: int


class Wishes(msgspec.Struct, frozen=True):
    """The grader wants to read on before it judges."""

    wishes: Sequence[Wish]


class Unusable(msgspec.Struct, frozen=True):
    """An answer that is neither; `reason` is for the grader to read, and for the explanation at the end."""

    reason: str


Answer = Verdict | Wishes | Unusable


@cache
def _prompt() -> str:
    return files("corral.brain").joinpath("outcome_prompt.md").read_text("utf-8")


_VERDICT_TOOL: Final[dict[str, Any]] = {
    "name": VERDICT,
    "description": "Give the verdict. It ends the evaluation.",
    "input_schema": {
        "type": "object",
        "properties": {
            "criteria": {
                "type": "array",
                "description": "Each criterion of the rubric with what you found.",
                "items": {
                    "type": "object",
                    "properties": {
                        "criterion": {"type": "string", "description": "The criterion, in a few words."},
                        "reason": {"type": "string", "description": "What you found, and where."},
                        "met": {"type": "boolean"},
                    },
                    "required": ["criterion", "reason", "met"],
                },
            },
            "explanation": {
                "type": "string",
                "description": "For the agent: what is missing, or why all is well.",
            },
            "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
        },
        "required": ["criteria", "explanation", "result"],
    },
}
_READ_TOOL: Final[dict[str, Any]] = {
    "name": READ,
    "description": f"Read a part of a deliverable that is text, at most {PART:,} characters at once.",
    "input_schema": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Its path, as it is listed."},
            "offset": {"type": "integer", "minimum": 0, "description": "The first character; 0 when absent."},
        },
        "required": ["path"],
    },
}


def grading_request(
    evidence: Evidence, *, model: str, effort: str, speed: str, session_id: str, reads: int, plain: bool
) -> ModelRequest:
    """The next request of an evaluation in which `reads` answers have read so far.

    `plain`: an earlier one was refused; this one forces no tool. Its evidence should hold no media either.
    """
    readable = any(one.text is not None for one in evidence.deliverables)
    tools = [_VERDICT_TOOL, _READ_TOOL] if readable else [_VERDICT_TOOL]
    forced = {"type": "tool", "name": VERDICT} if not readable or reads >= MOST_READS else {"type": "any"}
    return ModelRequest(
        model=model,
        messages=_messages(evidence, model),
        system=[{"type": "text", "text": _prompt(), "cache_control": {"type": "ephemeral"}}],
        tools=tools,
        tool_choice=None if plain else forced,
        effort=effort,
        speed=speed,
        session_id=session_id,
    )


def read_answer(answer: ModelResponse) -> Answer:
    """What an answer of the grader comes to."""
    if answer.stop_reason == "refusal":
        return Unusable("The model refused to judge.")
    if answer.stop_reason == "max_tokens":
        return Unusable("The answer was cut off at the output limit. Be briefer.")
    calls = [block for block in answer.content if block.get("type") == "tool_use"]
    for call in calls:
        if call.get("name") == VERDICT:
            return _verdict(call.get("input"))
    if not calls:
        return Unusable(f"The answer holds no verdict. Give it by calling {VERDICT}.")
    wishes: list[Wish] = []
    for call in calls:
        given = cast("dict[str, Any]", call.get("input") or {})
        path, offset = given.get("path"), given.get("offset", 0)
        if call.get("name") != READ or not isinstance(path, str) or type(offset) is not int or offset < 0:
            return Unusable(f"There is {VERDICT}, and {READ} with a path and an offset, and nothing else.")
        wishes.append(Wish(str(call["id"]), path, offset))
    return Wishes(wishes)


def kept_content(answer: ModelResponse) -> list[Block]:
    """The blocks of an answer that is no verdict, as they are shown to the grader again."""
    blocks = [
        block
        for block in given_back(answer.content, same_model=True)
        if block.get("type") != "tool_use" or answer.stop_reason not in ("max_tokens", "refusal")
    ]
    while blocks and blocks[-1]["type"] in ("thinking", "redacted_thinking"):
        blocks.pop()
    return blocks


def part_of(text: str, offset: int) -> str:
    """A part of a deliverable, with where it ends."""
    part = text[offset : offset + PART]
    left = len(text) - offset - len(part)
    if not part:
        return f"(There is nothing at {offset}: the text has {len(text)} characters.)"
    more = f"\n({left} more characters: go on at offset {offset + len(part)}.)" if left > 0 else ""
    return part + more


class _Criterion(msgspec.Struct):
    criterion: str
    reason: str
    met: bool


class _Submitted(msgspec.Struct):
    criteria: list[_Criterion]
    explanation: str
    result: Result


def _verdict(given: object) -> Verdict | Unusable:
    try:
        submitted = msgspec.convert(given, _Submitted)
    except msgspec.ValidationError as error:
        return Unusable(f"The input of {VERDICT} is not as its schema has it: {error}")
    if not submitted.explanation.strip():
        return Unusable("The explanation is empty.")
    unmet = [one for one in submitted.criteria if not one.met]
    if submitted.result == "satisfied" and unmet:
        return Unusable(
            "The result is satisfied, and yet a criterion is not met. Give a verdict that agrees."
        )
    return Verdict(submitted.result, _explained(submitted))


def _explained(submitted: _Submitted) -> str:
    """The explanation that everybody reads: the grader's, and below it each criterion."""
    lines = [
        f"- {'met' if one.met else 'NOT met'}: {one.criterion[:_CRITERION]} ({one.reason[:_CRITERION]})"
        for one in submitted.criteria[:_CRITERIA]
    ]
    text = submitted.explanation.strip()[:_EXPLANATION]
    # Free text as the API takes it elsewhere too: no NUL.
    return ("\n".join([text, "", *lines]) if lines else text).replace("\0", "\ufffd")


def _messages(evidence: Evidence, model: str) -> list[dict[str, Any]]:
    first = _first_message(evidence)
    first[-1] = {**first[-1], "cache_control": {"type": "ephemeral"}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": first}]
    for one in evidence.rounds:
        content = list(given_back(one.content, same_model=one.model == model))
        reply: list[Block] = [
            {
                "type": "tool_result",
                "tool_use_id": call_id,
                "content": [{"type": "text", "text": result["text"]}],
                "is_error": result["is_error"],
            }
            for call_id, result in one.results.items()
        ]
        if one.note:
            reply.append({"type": "text", "text": one.note})
        if content:
            messages.append({"role": "assistant", "content": content})
            messages.append({"role": "user", "content": reply})
        else:
            messages[-1]["content"].extend(reply)
    return messages


def _first_message(evidence: Evidence) -> list[Block]:
    number = f"This is evaluation {evidence.iteration + 1} of at most {evidence.max_iterations}."
    blocks = [_text(f"{number}\n\n# The task\n\n{evidence.description}\n\n# The rubric\n\n{evidence.rubric}")]
    if evidence.earlier:
        blocks.append(_text(f"# The evaluation before this one\n\n{_set_apart(evidence, evidence.earlier)}"))
    blocks.append(_text(f"# The deliverables\n\n{_listing(evidence)}"))
    for one in evidence.deliverables:
        blocks += _shown(evidence, one)
    record = evidence.record or "(It has done nothing that is on record.)"
    blocks.append(_text(f"# What the agent did, shortened\n\n{_set_apart(evidence, record)}"))
    words = evidence.last_words or "(It said nothing.)"
    blocks.append(_text(f"# The agent's last message\n\n{_set_apart(evidence, words)}\n\nNow judge."))
    return blocks


def _listing(evidence: Evidence) -> str:
    if not evidence.deliverables:
        return "No file was handed over."
    lines = [
        f"- {msgspec.json.encode(one.path).decode()}: {one.mime_type}, {one.size} bytes{_visibility(one)}"
        for one in evidence.deliverables
    ]
    if evidence.unlisted:
        lines.append(f"- and {evidence.unlisted} more, which are not listed")
    return "\n".join(lines)


def _visibility(one: Deliverable) -> str:
    if one.text is not None:
        if not one.text:
            return f", text that can be read with {READ}"
        return f", the first {len(one.text)} characters below, {one.left} more to be read" if one.left else ""
    return "" if one.media is not None else ", its contents cannot be shown"


def _shown(evidence: Evidence, one: Deliverable) -> Iterable[Block]:
    name = msgspec.json.encode(one.path).decode()
    if one.text:
        yield _text(f"{name}:\n\n{_set_apart(evidence, one.text)}")
    if one.media is not None:
        yield _text(f"{name}:")
        yield one.media


def _set_apart(evidence: Evidence, text: str) -> str:
    return f"--- begin {evidence.mark}\n{text}\n--- end {evidence.mark}"


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def unread(results: Mapping[str, Block], content: Iterable[Block], reason: str) -> dict[str, Block]:
    """The results with one for every call of `content` that has none: each call is answered."""
    calls = [str(block["id"]) for block in content if block.get("type") == "tool_use"]
    return {call: results.get(call) or {"text": reason, "is_error": True} for call in calls}
