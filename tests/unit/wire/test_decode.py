"""From bytes to structs: nothing but an `ApiError` comes out, and it names the field."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.agents import CreateAgent
from corral.wire.decode import BODY_BYTES, decode, describe, parse
from corral.wire.errors import ApiError, InvalidRequest, RequestTooLarge
from corral.wire.events import SendEvents
from corral.wire.fields import UNSET, Request, UnsetType
from corral.wire.secret import SecretText
from corral.wire.sessions import CreateSession, UpdateSession

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["agent", "environment_id", "events", "type", "content", "name", "model", "tools", "metadata", "id"]


def refusal(body: bytes, type_: type[Any] = SendEvents) -> str:
    with pytest.raises(InvalidRequest) as refused:
        decode(body, type_)
    return refused.value.message


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    for type_ in (SendEvents, CreateAgent, CreateSession, UpdateSession):
        try:
            decode(body, type_)
        except ApiError as error:
            json.loads(error.body("req_1"))


@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), JSON, max_size=6))
def test_any_object_decodes_or_is_refused(value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    for type_ in (SendEvents, CreateAgent, CreateSession, UpdateSession):
        try:
            msgspec.json.encode(decode(body, type_))
        except ApiError as error:
            json.loads(error.body("req_1"))


REFUSED: list[tuple[list[Any], str]] = [
    ([], "events: must have at least 1 items"),
    ([{"content": []}], "events[0].type: Field required"),
    ([{"type": "tool_confirmation"}], 'events[0].type: "tool_confirmation" is not a valid value'),
    ([{"type": "user.interrupt", "foo": 1}], "events[0].foo: Extra inputs are not permitted"),
    ([{"type": "user.message"}], "events[0].content: Field required"),
    ([{"type": "user.message", "content": []}], "events[0].content: must have at least 1 items"),
    (
        [{"type": "user.message", "content": [{"type": "redacted"}]}],
        'events[0].content[0].type: "redacted" is not a valid value '
        "(redacted blocks come from the server only)",
    ),
    (
        [{"type": "user.define_outcome", "description": "x"}],
        "events[0].rubric: Field required",
    ),
    (
        [{"type": "user.message", "content": [{"type": "text", "text": 5}]}],
        "events[0].content[0].text: Input should be a valid string, got integer",
    ),
    (
        [{"type": "user.tool_confirmation", "tool_use_id": "a", "result": "allow", "deny_message": "x"}],
        'events[0].deny_message: only allowed when result is "deny"',
    ),
    (
        [{"type": "user.message", "content": [{"type": "text", "text": " \n"}]}],
        "events[0].content: must hold more than white space",
    ),
]


@pytest.mark.parametrize(("events", "message"), REFUSED)
def test_a_refusal_names_the_path(events: list[Any], message: str) -> None:
    assert refusal(json.dumps({"events": events}).encode()) == message


def test_the_body_is_measured_before_it_is_read() -> None:
    with pytest.raises(RequestTooLarge):
        parse(b" " * (BODY_BYTES + 1))


def test_a_duplicate_key_is_refused_wherever_it_is() -> None:
    assert "more than once" in refusal(b'{"events":[{"type":"user.interrupt","type":"user.interrupt"}]}')


def test_free_text_is_made_clean_and_ids_are_refused() -> None:
    body = b'{"events":[{"type":"user.message","content":[{"type":"text","text":"a\\u0000\\udc00b"}]}]}'
    assert (
        msgspec.to_builtins(decode(body, SendEvents))["events"][0]["content"][0]["text"] == "a\ufffd\ufffdb"
    )
    confirmation = '{"events":[{"type":"user.tool_confirmation","result":"allow","tool_use_id":"\\u0000"}]}'
    assert refusal(confirmation.encode()).startswith("events[0].tool_use_id: holds a NUL")


def test_an_escaped_pair_of_surrogates_is_a_character() -> None:
    assert parse(b'{"content":"\\ud83d\\ude00"}') == {"content": "\U0001f600"}


def test_what_msgspec_may_say_newly_still_has_its_path() -> None:
    assert describe("Something new - at `$.a[0].b`") == "a[0].b: Something new"


class Pin(SecretText):
    """A short secret."""

    __slots__ = ()
    longest = 4


class Door(Request):
    """A request with secrets."""

    pin: Pin
    old: Pin | UnsetType | None = UNSET


def test_a_secret_of_a_request_is_masked_from_the_moment_that_it_is_decoded() -> None:
    door = decode(b'{"pin":"1234","old":null}', Door)
    assert (door.pin.reveal(), door.old) == ("1234", None)
    assert "1234" not in repr(door)
    assert decode(b'{"pin":"1234"}', Door).old is UNSET


@pytest.mark.parametrize("value", ['"12345"', '""', "1234", "[1234]", '{"a":1234}', "null", '"1234\\u0000"'])
def test_a_bad_secret_is_refused_with_its_path_and_without_itself(value: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^pin: ") as caught:
        decode(f'{{"pin":{value}}}'.encode(), Door)
    assert "1234" not in caught.value.message
