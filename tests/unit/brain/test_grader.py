"""What the grader is shown, and how its answers are read."""

import base64
from typing import Any

import pytest

from corral.brain.evidence import text_of
from corral.brain.grader import (
    MOST_READS,
    PART,
    Deliverable,
    Evidence,
    Round,
    Unusable,
    Verdict,
    Wish,
    Wishes,
    grading_request,
    kept_content,
    part_of,
    read_answer,
)
from corral.brain.settled import decoded
from corral.inference.provider import ModelRequest
from corral.testing import signing
from corral.testing.validation.request import check_request
from tests.mcp_parts import PIXEL
from tests.unit.brain.simulation import MODEL, answer, use, verdict

IMAGE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PIXEL).decode()},
}


def evidence(**fields: Any) -> Evidence:
    given: dict[str, Any] = {
        "mark": "sevt_mark",
        "description": "a report",
        "rubric": "It has figures.",
        "iteration": 1,
        "max_iterations": 3,
        "earlier": "",
        "deliverables": (),
        "unlisted": 0,
        "last_words": "done",
        "record": "agent: done",
    }
    return Evidence(**{**given, **fields})


def request(of: Evidence, *, reads: int = 0, plain: bool = False) -> ModelRequest:
    made = grading_request(
        of, model=MODEL, effort="high", speed="standard", session_id="sesn_1", reads=reads, plain=plain
    )
    choice = {} if made.tool_choice is None else {"tool_choice": made.tool_choice}
    check_request(
        {
            "model": MODEL,
            "max_tokens": 100,
            "messages": decoded(made.messages),
            "system": made.system,
            "tools": made.tools,
            **choice,
        }
    )
    return made


def text_in(made: ModelRequest) -> str:
    return "\n".join(block.get("text", "") for block in decoded(made.messages)[0]["content"])


def test_the_task_and_the_rubric_come_first_and_the_last_words_last() -> None:
    text = text_in(request(evidence()))
    order = ["evaluation 2 of at most 3", "a report", "It has figures.", "No file", "agent: done", "\ndone\n"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_an_earlier_evaluation_is_quoted_only_if_there_was_one() -> None:
    assert "before this one" not in text_in(request(evidence()))
    assert "the table is missing" in text_in(request(evidence(earlier="the table is missing")))


def test_work_without_words_or_deeds_says_so() -> None:
    text = text_in(request(evidence(last_words="", record="")))
    assert "It said nothing" in text
    assert "nothing that is on record" in text


def test_the_verdict_is_forced_where_there_is_nothing_to_read_or_enough_was_read() -> None:
    forced = {"type": "tool", "name": "submit_verdict"}
    readable = evidence(deliverables=[Deliverable("a.md", "text/markdown", 5, "words")])
    assert request(evidence()).tool_choice == forced
    assert request(readable).tool_choice == {"type": "any"}
    assert request(readable, reads=MOST_READS).tool_choice == forced


def test_media_stand_behind_their_names_and_what_cannot_be_shown_is_said_to_be_so() -> None:
    seen = Deliverable("a.png", "image/png", 70, media=IMAGE)
    unseen = Deliverable("b.png", "image/png", 71)
    made = request(evidence(deliverables=[seen, unseen]))
    content = decoded(made.messages)[0]["content"]
    assert content[content.index(IMAGE) - 1] == {"type": "text", "text": '"a.png":'}
    assert '- "b.png": image/png, 71 bytes, its contents cannot be shown' in text_in(made)


def test_a_plain_request_forces_nothing() -> None:
    assert request(evidence(), plain=True).tool_choice is None


def test_rounds_are_given_back_with_a_result_for_each_call() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": signing.sign("thinking", MODEL, "hm")}
    results = {"toolu_1": {"text": "part", "is_error": False}, "toolu_2": {"text": "none", "is_error": True}}
    calls = [use("toolu_1", "read_deliverable", path="a"), use("toolu_2", "read_deliverable", path="b")]
    rounds = [Round([thinking, *calls], results, model=MODEL), Round([], {}, "This will not do.", MODEL)]
    made = request(evidence(rounds=rounds))
    assert [message["role"] for message in decoded(made.messages)] == ["user", "assistant", "user"]
    last = decoded(made.messages)[-1]["content"]
    assert [block["type"] for block in last] == ["tool_result", "tool_result", "text"]
    assert [block.get("is_error") for block in last] == [False, True, None]


def test_thinking_of_another_model_is_left_out() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "of another"}
    text = {"type": "text", "text": "well"}
    made = request(evidence(rounds=[Round([thinking, text], {}, "no", "claude-other")]))
    assert decoded(made.messages)[1]["content"] == [text]


def test_a_verdict_is_read_with_its_criteria() -> None:
    criteria = [
        {"criterion": "table", "reason": "absent", "met": False},
        {"criterion": "prose", "reason": "fine", "met": True},
    ]
    given = {"criteria": criteria, "explanation": " no table ", "result": "needs_revision"}
    read = read_answer(answer(use("toolu_1", "submit_verdict", **given)))
    assert read == Verdict("needs_revision", "no table\n\n- NOT met: table (absent)\n- met: prose (fine)")


def test_a_verdict_beside_other_calls_counts() -> None:
    submitted = verdict("failed", "a poem").content[0]
    read = read_answer(answer(use("toolu_1", "read_deliverable", path="a"), submitted))
    assert read == Verdict("failed", "a poem")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"criteria": [], "explanation": "", "result": "satisfied"},
        {"criteria": [], "explanation": "x", "result": "perfect"},
        {"criteria": [{"criterion": "a"}], "explanation": "x", "result": "failed"},
        {"criteria": "all", "explanation": "x", "result": "satisfied"},
        {
            "criteria": [{"criterion": "a", "reason": "b", "met": False}],
            "explanation": "x",
            "result": "satisfied",
        },
    ],
)
def test_a_verdict_that_is_none_says_why(given: dict[str, Any]) -> None:
    read = read_answer(answer(use("toolu_1", "submit_verdict", **given)))
    assert isinstance(read, Unusable)
    assert read.reason


@pytest.mark.parametrize("stop", ["refusal", "max_tokens"])
def test_an_answer_that_was_cut_short_is_no_verdict(stop: str) -> None:
    cut = answer(use("toolu_1", "submit_verdict"), stop=stop)
    assert isinstance(read_answer(cut), Unusable)
    assert kept_content(cut) == []


def test_wishes_are_read_and_nonsense_is_not() -> None:
    one = use("toolu_1", "read_deliverable", path="a", offset=7)
    two = use("toolu_2", "read_deliverable", path="b")
    assert read_answer(answer(one, two)) == Wishes([Wish("toolu_1", "a", 7), Wish("toolu_2", "b", 0)])
    for call in (
        use("toolu_1", "bash", command="ls"),
        use("toolu_1", "read_deliverable"),
        use("toolu_1", "read_deliverable", path="a", offset=-1),
        use("toolu_1", "read_deliverable", path="a", offset=True),
    ):
        assert isinstance(read_answer(answer(call)), Unusable)
    assert isinstance(read_answer(answer()), Unusable)


def test_a_part_says_how_to_go_on() -> None:
    text = "x" * PART + "yz"
    assert part_of(text, 0) == "x" * PART + f"\n(2 more characters: go on at offset {PART}.)"
    assert part_of(text, PART) == "yz"
    assert "nothing at" in part_of(text, PART + 2)


def test_text_may_be_cut_within_a_character_and_bytes_are_no_text() -> None:
    assert text_of("für".encode()[:2]) == "f"
    assert text_of("💥".encode()[:3]) == ""
    assert text_of(b"a\x00b") is None
    assert text_of(b"\xff\xfe\xfd\xfc\xfb") is None
