"""Client events: their persisted form, and the rules within one request (contract section 10.3)."""

import json
from typing import Any, get_args

import pytest
from anthropic.types.beta.sessions import BetaManagedAgentsSessionEventType

from corral.wire.decode import decode
from corral.wire.errors import InvalidRequest
from corral.wire.events import PERSISTED_TYPES, SendEvents, persisted

TEXT = {"type": "text", "text": "hi"}
MESSAGE = {"type": "user.message", "content": [TEXT]}
SYSTEM = {"type": "system.message", "content": [TEXT]}


def sent(*events: dict[str, Any]) -> SendEvents:
    return decode(json.dumps({"events": events}).encode(), SendEvents)


@pytest.mark.parametrize(
    ("event", "kept"),
    [
        (MESSAGE, {"content": [TEXT]}),
        (
            {
                "type": "user.message",
                "content": [
                    TEXT,
                    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
                ],
            },
            {
                "content": [
                    TEXT,
                    {
                        "type": "document",
                        "source": {"type": "text", "media_type": "text/plain", "data": "d"},
                        "title": None,
                        "context": None,
                    },
                ]
            },
        ),
        ({"type": "user.interrupt"}, {"session_thread_id": None}),
        (
            {"type": "user.tool_confirmation", "tool_use_id": "t", "result": "deny", "message": "no"},
            {"tool_use_id": "t", "result": "deny", "deny_message": "no"},
        ),
        (
            {"type": "user.custom_tool_result", "custom_tool_use_id": "t", "session_thread_id": "x"},
            {"custom_tool_use_id": "t", "content": [], "is_error": False},
        ),
        (
            {
                "type": "user.tool_result",
                "tool_use_id": "t",
                "is_error": True,
                "content": [
                    {"type": "text", "text": ""},
                    {
                        "type": "search_result",
                        "source": "https://x",
                        "title": "T",
                        "content": [TEXT],
                        "citations": {"enabled": True},
                    },
                ],
            },
            {
                "tool_use_id": "t",
                "is_error": True,
                "content": [
                    {"type": "text", "text": ""},
                    {
                        "type": "search_result",
                        "source": "https://x",
                        "title": "T",
                        "content": [TEXT],
                        "citations": {"enabled": True},
                    },
                ],
            },
        ),
        (SYSTEM, {"content": [TEXT]}),
    ],
)
def test_an_event_is_kept_as_the_api_shows_it(event: dict[str, Any], kept: dict[str, Any]) -> None:
    (request,) = sent(event).events
    assert persisted(request, "sevt_1") == {"id": "sevt_1", "type": event["type"], **kept}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((SYSTEM, MESSAGE), "events[0]: a system.message must be the last"),
        ((MESSAGE, SYSTEM, SYSTEM), "events[1]: a system.message must be the last"),
        (({"type": "user.interrupt"}, SYSTEM), "events[1]: a system.message must directly follow"),
    ],
)
def test_a_system_message_has_its_place(events: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message.replace("[", r"\[").replace("]", r"\]")):
        sent(*events)


def test_a_system_message_may_come_alone_or_after_a_message() -> None:
    assert len(sent(SYSTEM).events) == 1
    assert len(sent(MESSAGE, SYSTEM).events) == 2


def test_the_filter_takes_exactly_the_types_that_the_sdk_knows() -> None:
    assert frozenset(get_args(BetaManagedAgentsSessionEventType)) == PERSISTED_TYPES
    assert len(PERSISTED_TYPES) == 41
