"""What the provider sent, against what Corral streamed, logged, counted and sent back. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from scripts.local_model.recording import Exchange

Event = dict[str, Any]

_COUNTS: Final = ("input_tokens", "output_tokens", "cache_read_input_tokens")


@dataclass(frozen=True)
class Received:
    """What a client of the session saw."""

    streamed: Sequence[Event]
    """Everything that the stream brought, previews included."""
    listed: Sequence[Event]
    """The session's events, listed afterwards."""
    usage: dict[str, Any]
    """The session's own usage, read afterwards."""


@dataclass(frozen=True)
class Finding:
    """One comparison: what must be true, whether it is, and if not, how far it holds."""

    claim: str
    holds: bool
    detail: str = ""


def compare(exchanges: Sequence[Exchange], received: Received) -> list[Finding]:
    """Every comparison, in the order in which tokens travel."""
    sent = [exchange.text for exchange in exchanges]
    return [
        _same("every model request was answered", [200] * len(sent), [one.status for one in exchanges]),
        _same("the previews are the text that the provider sent", sent, previews(received.streamed)),
        _same("the streamed messages are that text", sent, messages(received.streamed)),
        _same("the listed messages are that text", sent, messages(received.listed)),
        _same(
            "the streamed events are the listed ones",
            [event["id"] for event in received.listed if _in_stream(event)],
            [event["id"] for event in received.streamed if "id" in event and _in_stream(event)],
        ),
        _same("each request's counts are the provider's", _counts(exchanges), logged_counts(received.listed)),
        _same("the session's counts are their sums", _sums(exchanges), _picked(received.usage)),
        _same(
            "each request gives the model its earlier answers back unchanged",
            [said_before(received.listed, n, "agent.message") for n in range(len(exchanges))],
            [texts_of(exchange.request, "assistant") for exchange in exchanges],
        ),
        _same(
            "each request gives the model all that the user has said",
            [said_before(received.listed, n, "user.message") for n in range(len(exchanges))],
            [_known(texts_of(exchange.request, "user"), received.listed) for exchange in exchanges],
        ),
    ]


def previews(streamed: Sequence[Event]) -> list[str]:
    """The text of each message as its previews brought it, in order of the messages' starts."""
    texts = {
        event["event"]["id"]: ""
        for event in streamed
        if event["type"] == "event_start" and event["event"]["type"] == "agent.message"
    }
    for event in streamed:
        if event["type"] == "event_delta":
            texts[event["event_id"]] += event["delta"]["content"]["text"]
    return list(texts.values())


def messages(events: Sequence[Event]) -> list[str]:
    """The text of each of the agent's messages."""
    return [text_of(event["content"]) for event in events if event["type"] == "agent.message"]


def logged_counts(events: Sequence[Event]) -> list[dict[str, int]]:
    """The counts of each model request, as the log has them."""
    return [_picked(event["model_usage"]) for event in events if event["type"] == "span.model_request_end"]


def texts_of(request: dict[str, Any], role: str) -> list[str]:
    """The texts of `role` in the messages of a request to the model, one for each message."""
    return [text_of(message["content"]) for message in request["messages"] if message["role"] == role]


def said_before(listed: Sequence[Event], request: int, kind: str) -> list[str]:
    """The texts of the messages of type `kind` that the log has before the model request number `request`."""
    said: list[str] = []
    starts = -1
    for event in listed:
        starts += event["type"] == "span.model_request_start"
        if event["type"] == kind and starts < request:
            said.append(text_of(event["content"]))
    return said


def text_of(content: Sequence[dict[str, Any]]) -> str:
    """The text of content blocks."""
    return "".join(block["text"] for block in content if block["type"] == "text")


def _known(texts: Sequence[str], listed: Sequence[Event]) -> list[str]:
    """Those of `texts` that a user said: Corral adds a note of its own after an answer that was cut off."""
    said = {text_of(event["content"]) for event in listed if event["type"] == "user.message"}
    return [text for text in texts if text in said]


def _in_stream(event: Event) -> bool:
    return event.get("processed_at") is not None and event["type"] not in ("event_start", "event_delta")


def _counts(exchanges: Sequence[Exchange]) -> list[dict[str, int]]:
    return [_picked(exchange.usage) for exchange in exchanges]


def _picked(usage: dict[str, Any]) -> dict[str, int]:
    return {name: usage.get(name, 0) for name in _COUNTS}


def _sums(exchanges: Sequence[Exchange]) -> dict[str, int]:
    return {name: sum(counts[name] for counts in _counts(exchanges)) for name in _COUNTS}


def _same(claim: str, expected: Any, found: Any) -> Finding:
    if expected == found:
        return Finding(claim, bool(expected), "" if expected else "there is nothing to compare")
    return Finding(claim, False, f"expected {expected!r}\n     but found {found!r}")
