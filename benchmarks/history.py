"""A session's past, made up: events as a brain would have written them, of any number."""

from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from corral.session.events import NewEvent, new_event

_ROUNDS: Final = 6
"""Tool calls in a turn."""
_USED: Final = {
    "input_tokens": 10,
    "output_tokens": 20,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "speed": "standard",
}


def history(thread_id: str, model: str, events: int) -> Iterator[NewEvent]:
    """At least so many events: whole turns, in each of which the agent runs some commands and then answers.

    The first message says which: ``turn 0``.
    """
    written = 0
    for turn in count():
        if written >= events:
            return
        for event in _turn(thread_id, model, turn):
            written += 1
            yield event


def _turn(thread_id: str, model: str, turn: int) -> Iterator[NewEvent]:
    status: dict[str, Any] = {"session_thread_id": thread_id, "agent_name": "benchmark"}
    yield new_event("user.message", thread_id, content=[_text(f"turn {turn}: look into the next file")])
    yield new_event("session.status_running", thread_id)
    yield new_event("session.thread_status_running", thread_id, **status)
    for part in range(_ROUNDS):
        command = f"sed -n {turn},{turn + 40}p part_{part}.py | head -20"
        yield from _request(thread_id, model, f"Part {part} of it comes next.", command)
    yield from _request(
        thread_id, model, f"There is nothing wrong with it, as far as turn {turn} shows.", None
    )
    ended = {"type": "end_turn"}
    yield new_event("session.thread_status_idle", thread_id, **status, stop_reason=ended, stop_details=None)
    yield new_event("session.status_idle", thread_id, stop_reason=ended, stop_details=None)


def _request(thread_id: str, model: str, text: str, command: str | None) -> Iterator[NewEvent]:
    start = new_event("span.model_request_start", thread_id)
    yield start
    yield new_event("agent.message", thread_id, content=[_text(text)])
    content: list[dict[str, Any]] = [_text(text)]
    calls: dict[str, str] = {}
    use: NewEvent | None = None
    if command is not None:
        given = {"command": command}
        allowed: dict[str, Any] = {"evaluated_permission": "allow", "evaluation": {"type": "always_allow"}}
        use = new_event("agent.tool_use", thread_id, name="bash", input=given, **allowed)
        model_id = f"toolu_{use.id.removeprefix('sevt_')}"
        content.append({"type": "tool_use", "id": model_id, "name": "bash", "input": given})
        calls[model_id] = use.id
        yield use
    yield new_event(
        "span.model_request_end",
        thread_id,
        is_error=False,
        model_request_start_id=start.id,
        model_usage=_USED,
        private={
            "outcome": "completed",
            "content": content,
            "stop_reason": "end_turn" if use is None else "tool_use",
            "stop_details": None,
            "calls": calls,
            "model": model,
            "served_model": model,
            "usage": {"input_tokens": 10, "output_tokens": 20},
        },
    )
    if use is not None:
        shown = "\n".join(f"    total += parts[{n}].weight  # {text}" for n in range(4))
        answer = new_event(
            "agent.tool_result", thread_id, tool_use_id=use.id, content=[_text(shown)], is_error=False
        )
        yield NewEvent(answer.id, answer.type, thread_id, answer.body, resolves=use.id)


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
