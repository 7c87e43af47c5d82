"""The comparison that `make demo-local` ends with finds what is lost, changed or counted wrongly."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scripts.local_model.comparison import Event, Received, compare
from scripts.local_model.recording import Exchange


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def exchange(messages: list[dict[str, Any]], *pieces: str) -> Exchange:
    """A request that the provider answered with `pieces`."""
    count = {"input_tokens": 10 * len(messages), "cache_read_input_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": count}}]
    for piece in pieces:
        events.append(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        )
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": len(pieces)},
    }
    raw = b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in [*events, end])
    # The wire may cut anywhere.
    return Exchange({"messages": messages}, 1.0, 200, [(2.0, raw[:50]), (3.0, raw[50:])])


def turn(number: int, question: str, tokens_in: int, *pieces: str) -> list[Event]:
    """A turn as the stream shows it, previews included."""
    message = f"message_{number}"
    texts = [{"type": "text", "text": "".join(pieces)}]
    usage = {"input_tokens": tokens_in, "output_tokens": len(pieces), "cache_read_input_tokens": 1}
    logged: list[Event] = [
        {"type": "user.message", "content": [{"type": "text", "text": question}]},
        {"type": "span.model_request_start"},
        {"type": "agent.message", "id": message, "content": texts},
        {"type": "span.model_request_end", "model_usage": usage},
        {"type": "session.status_idle"},
    ]
    for place, event in enumerate(logged):
        event.setdefault("id", f"event_{number}_{place}")
        event["processed_at"] = "2026-01-01T00:00:00Z"
    previews: list[Event] = [{"type": "event_start", "event": {"type": "agent.message", "id": message}}]
    for piece in pieces:
        content = {"type": "text", "text": piece}
        previews.append({"type": "event_delta", "event_id": message, "delta": {"content": content}})
    return [*logged[:2], *previews, *logged[2:]]


def a_faithful_run() -> tuple[list[Exchange], Received]:
    first = [said("user", "Hello")]
    second = [*first, said("assistant", "Ça va ?"), said("user", "Bye")]
    exchanges = [exchange(first, "Ça", " va ?"), exchange(second, "Adieu")]
    streamed = [*turn(1, "Hello", 10, "Ça", " va ?"), *turn(2, "Bye", 30, "Adieu")]
    listed = [event for event in streamed if not event["type"].startswith("event_")]
    usage = {"input_tokens": 40, "output_tokens": 3, "cache_read_input_tokens": 2}
    return exchanges, Received(streamed, msgspec.json.decode(msgspec.json.encode(listed)), usage)


def failing(exchanges: list[Exchange], received: Received) -> list[str]:
    return [finding.claim for finding in compare(exchanges, received) if not finding.holds]


def test_a_faithful_run_holds() -> None:
    assert failing(*a_faithful_run()) == []


def test_a_run_without_any_answer_does_not_hold() -> None:
    assert failing([], Received([], [], {}))


def a_preview_is_lost(received: Received, exchanges: list[Exchange]) -> None:
    streamed: Any = received.streamed
    streamed.remove(next(event for event in streamed if event["type"] == "event_delta"))


def the_streamed_message_differs(received: Received, exchanges: list[Exchange]) -> None:
    event = next(event for event in received.streamed if event["type"] == "agent.message")
    event["content"] = [{"type": "text", "text": "Ca va ?"}]


def the_listed_message_differs(received: Received, exchanges: list[Exchange]) -> None:
    event = [event for event in received.listed if event["type"] == "agent.message"][-1]
    event["content"][0]["text"] += " "


def an_event_is_not_streamed(received: Received, exchanges: list[Exchange]) -> None:
    streamed: Any = received.streamed
    streamed.pop()


def a_request_is_miscounted(received: Received, exchanges: list[Exchange]) -> None:
    event = next(event for event in received.listed if event["type"] == "span.model_request_end")
    event["model_usage"]["output_tokens"] += 1


def the_session_is_miscounted(received: Received, exchanges: list[Exchange]) -> None:
    received.usage["input_tokens"] += 1


def an_answer_goes_back_changed(received: Received, exchanges: list[Exchange]) -> None:
    exchanges[1].request["messages"][1] = said("assistant", "Ça va")


def a_message_does_not_reach_the_model(received: Received, exchanges: list[Exchange]) -> None:
    del exchanges[1].request["messages"][2]


def a_request_fails(received: Received, exchanges: list[Exchange]) -> None:
    exchanges[1].status = 500


@pytest.mark.parametrize(
    ("damage", "claim"),
    [
        (a_request_fails, "every model request was answered"),
        (a_preview_is_lost, "the previews are the text that the provider sent"),
        (the_streamed_message_differs, "the streamed messages are that text"),
        (the_listed_message_differs, "the listed messages are that text"),
        (an_event_is_not_streamed, "the streamed events are the listed ones"),
        (a_request_is_miscounted, "each request's counts are the provider's"),
        (the_session_is_miscounted, "the session's counts are their sums"),
        (an_answer_goes_back_changed, "each request gives the model its earlier answers back unchanged"),
        (a_message_does_not_reach_the_model, "each request gives the model all that the user has said"),
    ],
)
def test_each_kind_of_damage_is_found(damage: Callable[[Received, list[Exchange]], None], claim: str) -> None:
    exchanges, received = a_faithful_run()
    damage(received, exchanges)

    assert claim in failing(exchanges, received)
