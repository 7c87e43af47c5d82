"""The transcript: each word once, however it arrived."""

import io
from typing import Any

from rich.console import Console

from corral.cli.transcript_view import TranscriptView


def at(second: float) -> str:
    return f"2026-10-10T09:00:{second:06.3f}Z"


def shown(*events: dict[str, Any], **options: Any) -> str:
    file = io.StringIO()
    view = TranscriptView(Console(file=file, width=200, soft_wrap=True), clock=lambda: 0.0, **options)
    for event in events:
        view.show({"id": "m", "processed_at": at(0), **event})
    return file.getvalue()


def delta(text: str, index: int = 0) -> dict[str, Any]:
    content = {"type": "text", "text": text}
    return {"type": "event_delta", "event_id": "m", "delta": {"index": index, "content": content}}


def message(*texts: str) -> dict[str, Any]:
    return {"type": "agent.message", "content": [{"type": "text", "text": text} for text in texts]}


def end(*, is_error: bool = False) -> dict[str, Any]:
    usage = dict.fromkeys(
        ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"), 0
    )
    return {"type": "span.model_request_end", "is_error": is_error, "model_usage": usage}


def test_a_message_that_was_streamed_is_completed_not_repeated() -> None:
    assert shown(delta("Hello "), message("Hello there")) == "● Hello there\n"


def test_several_blocks_are_streamed_as_they_are_printed() -> None:
    assert shown(delta("one"), delta("two", 1), message("one", "two, three")) == "● one\ntwo, three\n"


def test_a_message_whose_pieces_were_lost_is_printed_whole() -> None:
    assert shown(delta("one"), delta("three"), message("one two three")) == "● onethree\n● one two three\n"


def test_a_message_that_was_cut_ends_its_line() -> None:
    assert shown(delta("Hello"), end(is_error=True)) == "● Hello ⋯ cut off\n"


def test_a_tools_duration_counts_from_the_yes_of_the_person() -> None:
    output = shown(
        {
            "type": "agent.tool_use",
            "id": "a",
            "name": "bash",
            "input": {"command": "ls"},
            "processed_at": at(1),
        },
        {"type": "user.tool_confirmation", "tool_use_id": "a", "result": "allow", "processed_at": at(9)},
        {"type": "agent.tool_result", "tool_use_id": "a", "content": [], "processed_at": at(9.5)},
    )
    assert "ok in 0.50 s" in output


def test_a_waiting_message_is_shown_when_it_is_read() -> None:
    said = {"type": "user.message", "content": [{"type": "text", "text": "hi"}]}
    assert shown({**said, "processed_at": None}, said, messages=True) == "❯ hi\n"


def test_an_output_cannot_steer_the_terminal() -> None:
    content = [{"type": "text", "text": "\x1b[2Jgone"}]
    assert "\x1b" not in shown({"type": "agent.tool_result", "tool_use_id": "a", "content": content})


def test_an_evaluation_is_told_with_its_verdict() -> None:
    ended = {"type": "span.outcome_evaluation_end", "iteration": 1, "result": "needs_revision"}
    output = shown(
        {"type": "span.outcome_evaluation_start", "iteration": 1},
        {"type": "span.outcome_evaluation_ongoing", "iteration": 1},
        {**ended, "explanation": "no table"},
    )
    assert output == "  the work is judged (evaluation 2) …\n  judged: needs_revision. no table\n"
