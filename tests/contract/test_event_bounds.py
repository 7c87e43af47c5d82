"""Events at the edges of their limits: the most is taken, one more refused by name (contract 2.5, 10.3)."""

import json
from typing import Any

import pytest

from tests.contract.conftest import Api
from tests.contract.refusals import refused
from tests.contract.test_events_send import UNKNOWN, a_waiting_call, custom_result, listed, send
from tests.contract.test_permissions import LS, calling, verdict
from tests.contract.test_sessions_create import message
from tests.corral_server import Corral

TEXT: dict[str, Any] = {"type": "text", "text": "x"}


def user(*blocks: Any) -> dict[str, Any]:
    return {"type": "user.message", "content": list(blocks)}


def system(count: int) -> dict[str, Any]:
    return {"type": "system.message", "content": [TEXT] * count}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


def search_result(**fields: Any) -> dict[str, Any]:
    return {
        "type": "search_result",
        "source": "https://example.com/a",
        "title": "A",
        "content": [{"type": "text", "text": "words"}],
        "citations": {"enabled": True},
        **fields,
    }


async def test_a_system_message_holds_a_thousand_texts_and_not_one_more(api: Api) -> None:
    session = await api.session()
    await refused(send(api, session, system(1001)), "events[0].content: must have at most 1000 items")
    sent = await send(api, session, system(1000))
    assert len(sent.data[0].content) == 1000


async def test_a_denial_takes_ten_thousand_characters_of_reason(corral: Corral) -> None:
    session, _, ids = await calling(corral, LS, bash="always_ask")
    longest = "\u00e9" * 10_000
    too_long = verdict(ids["bash"], "deny", deny_message=longest + "x")
    await refused(session.sends(too_long), "events[0].deny_message: must have at most 10000 characters")
    sent = await session.sends(verdict(ids["bash"], "deny", deny_message=longest))
    assert sent.data[0].deny_message == longest


async def test_a_denial_needs_no_reason_and_shows_null_for_it(corral: Corral) -> None:
    session, _, ids = await calling(corral, LS, bash="always_ask")
    sent = await session.sends(verdict(ids["bash"], "deny", deny_message=None))
    assert sent.data[0].to_dict()["deny_message"] is None
    assert "session_thread_id" not in sent.data[0].to_dict()


async def test_an_early_clients_echo_of_the_thread_is_taken_and_not_kept(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    threads = await corral.client.beta.sessions.threads.list(session.id)
    echo = custom_result(call, "found", session_thread_id=threads.data[0].id)
    sent = await session.sends(echo)
    assert set(sent.data[0].to_dict()) == {
        *("id", "type", "custom_tool_use_id", "content", "is_error", "processed_at")
    }


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (user(document(type="text", media_type="text/plain", data="")), "content[0].source.data: must"),
        (user(document(type="url", url="")), "content[0].source.url: must have at least 1"),
        (
            user(document(type="url", url="https://e.com/" + "x" * 2048)),
            "content[0].source.url: must have at",
        ),
        (user(document(type="file", file_id="")), "content[0].source.file_id: must have at least 1"),
        (user(document(type="file", file_id="f" * 129)), "content[0].source.file_id: must have at most 128"),
        (user(document(type="ftp", url="x")), 'content[0].source.type: "ftp" is not a valid value'),
        (user({"type": "document"}), "content[0].source: Field required"),
        (user({"type": "image", "source": {"type": "text"}}), "content[0].source.type"),
        (user({"type": "image", "source": {"type": "base64", "data": "x"}}), "content[0].source.media_type"),
        (user(TEXT, {"type": "text", "text": 5}), "content[1].text: Input should be a valid string"),
        (user(TEXT, {"text": "x"}), "content[1].type: Field required"),
        (user(TEXT, None), "content[1]: Input should be a valid object"),
        ({"type": "user.interrupt", "session_thread_id": "t" * 129}, "session_thread_id: must have at most"),
        ({"type": "user.interrupt", "session_thread_id": 5}, "session_thread_id: Input should be"),
        (custom_result("c" * 129, "x"), "custom_tool_use_id: must have at most 128 characters"),
        (custom_result("", "x"), "custom_tool_use_id: must have at least 1 characters"),
        (custom_result(UNKNOWN, "x", is_error="no"), "is_error: Input should be a valid boolean"),
        ({**custom_result(UNKNOWN), "content": "x"}, "content: Input should be a valid list"),
        ({**custom_result(UNKNOWN), "content": [{"type": "thinking"}]}, "content[0].type"),
        ({**custom_result(UNKNOWN), "content": [{"type": "redacted"}]}, "content[0].type"),
        ({**custom_result(UNKNOWN), "content": [search_result(source="")]}, "content[0].source: must"),
        ({**custom_result(UNKNOWN), "content": [search_result(title="")]}, "content[0].title: must"),
        ({**custom_result(UNKNOWN), "content": [search_result(citations=None)]}, "content[0].citations"),
        (
            {**custom_result(UNKNOWN), "content": [search_result(content=[{"type": "text", "text": ""}])]},
            "content[0].content[0].text: must have at least 1",
        ),
        ({"type": "system.message"}, "content: Field required"),
        ({"type": "system.message", "content": [{"type": "redacted"}]}, "content[0].type"),
        ({"type": "system.message", "content": [{"type": "text", "text": " "}]}, "content: must hold more"),
        ({"type": "session.updated", "title": "x"}, 'type: "session.updated" is not a valid value'),
        ({"type": "event_start"}, 'type: "event_start" is not a valid value'),
    ],
)
async def test_a_field_out_of_bounds_is_named_with_its_whole_path(api: Api, event: Any, named: str) -> None:
    session = await api.session()
    response = await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message(), event]})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["message"].startswith(f"events[1].{named}"), response.text
    assert await listed(api, session) == []


async def test_a_search_result_is_a_tools_to_give_and_comes_back_as_it_was_sent(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    block = search_result(citations={"enabled": False})
    sent = await session.sends({**custom_result(call), "content": [block, TEXT]})
    assert sent.data[0].to_dict()["content"] == [block, TEXT]
    await session.until("agent.message")
    last = corral.model.requests()[-1]["messages"][-1]["content"][0]
    assert last["type"] == "tool_result"
    assert last["content"][0]["type"] == "search_result"


async def test_the_longest_url_and_id_are_taken(api: Api) -> None:
    session = await api.session()
    url = "https://example.com/"
    longest = document(type="url", url=url + "x" * (2048 - len(url)))
    sent = await send(api, session, user(longest))
    assert sent.data[0].content[0].source.url == longest["source"]["url"]
    unknown = document(type="file", file_id="f" * 128)
    await refused(send(api, session, user(unknown)), "events[0].content[0].source.file_id", "not found")


async def test_a_hundred_documents_by_file_id_fit_one_request(api: Api) -> None:
    file = await api.sdk.files.upload(file=("a.txt", b"words", "text/plain"))
    session = await api.session()
    by_id = document(type="file", file_id=file.id)
    too_many = send(api, session, user(*[by_id] * 51), user(*[by_id] * 50))
    await refused(too_many, "events: at most 100 documents by file id in one request")
    sent = await send(api, session, user(*[by_id] * 50), user(*[by_id] * 50))
    assert [len(event.content) for event in sent.data] == [50, 50]


async def test_a_result_without_content_and_one_with_an_empty_text_are_taken(corral: Corral) -> None:
    bodies: list[dict[str, Any]] = [{}, {"content": []}, {"content": [{"type": "text", "text": ""}]}]
    for given in bodies:
        session, call = await a_waiting_call(corral)
        sent = await session.sends({**custom_result(call), **given})
        assert sent.data[0].to_dict()["content"] == given.get("content", [])
        await session.until("agent.message")


async def test_nothing_of_a_batch_is_taken_when_its_last_event_meets_the_log(corral: Corral) -> None:
    """The events are good by themselves: it is what the log holds that one of them breaks on."""
    session, call = await a_waiting_call(corral)
    before = await session.types()
    batch = (message("a"), custom_result(call, "found"), message("b"), custom_result(UNKNOWN, "x"))
    await refused(session.sends(*batch), "events[3].custom_tool_use_id", UNKNOWN)
    assert await session.types() == before
    sent = await session.sends(*batch[:3])
    assert [event.type for event in sent.data] == ["user.message", "user.custom_tool_result", "user.message"]


@pytest.mark.parametrize("name", ["Events", "events[]", "event", "session_id"])
async def test_a_field_beside_the_events_is_refused_by_name(api: Api, name: str) -> None:
    session = await api.session()
    response = await api.post(f"/v1/sessions/{session['id']}/events", {"events": [message()], name: 1})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"{name}: Extra inputs are not permitted"


async def test_the_batch_that_is_too_long_by_one_says_so_and_takes_nothing(api: Api) -> None:
    session = await api.session()
    body = json.dumps({"events": [message()] * 1001})
    response = await api.http.post(f"/v1/sessions/{session['id']}/events", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "events: must have at most 1000 items"
    assert await listed(api, session) == []
