"""Many clients that send to one session at the same time (contract sections 10.2 and 26)."""

import asyncio
from typing import Any

import anthropic

from tests.contract.conftest import Api
from tests.contract.test_events_send import a_waiting_call, custom_result, listed
from tests.contract.test_permissions import LS, calling, verdict
from tests.contract.test_processed_at import outcome
from tests.contract.test_sessions_create import message
from tests.corral_server import Corral
from tests.moments import ends_turn


def split(outcomes: list[Any]) -> tuple[list[Any], list[int]]:
    """What was answered, and the statuses of what was refused."""
    taken = [one for one in outcomes if not isinstance(one, BaseException)]
    refused: list[int] = []
    for one in outcomes:
        if isinstance(one, BaseException):
            assert isinstance(one, anthropic.APIStatusError), one
            assert one.response.headers["x-should-retry"] == "false"
            refused.append(one.status_code)
    return taken, refused


async def test_messages_of_many_clients_are_all_kept_each_clients_in_its_order(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}/events"

    async def client(name: str) -> None:
        for n in range(5):
            batch = [message(f"{name} {n}a"), message(f"{name} {n}b")]
            assert (await api.post(path, {"events": batch})).status_code == 200

    await asyncio.gather(*(client(str(n)) for n in range(8)))
    texts = [event["content"][0]["text"] for event in await listed(api, session)]
    assert len(texts) == len(set(texts)) == 80
    for n in range(8):
        own = [text.split()[1] for text in texts if text.split()[0] == str(n)]
        assert own == [f"{k}{half}" for k in range(5) for half in "ab"]
    # A batch stands together, whatever the others send meanwhile.
    assert all(text[:-1] == texts[at + 1][:-1] for at, text in enumerate(texts) if text.endswith("a"))


async def test_of_two_different_answers_to_one_call_the_first_stands(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    sends = (session.sends(custom_result(call, f"answer {n}")) for n in range(6))
    taken, refused = split(await asyncio.gather(*sends, return_exceptions=True))
    assert len(taken) == 1
    assert refused == [400] * 5
    await session.until("session.status_idle", where=ends_turn)
    [kept] = await session.events(types=["user.custom_tool_result"])
    assert kept.id == taken[0].data[0].id


async def test_of_two_opposite_verdicts_on_one_call_the_first_stands(corral: Corral) -> None:
    session, idle, ids = await calling(corral, LS, kind="cloud", bash="always_ask")
    verdicts = [verdict(ids["bash"], "deny"), verdict(ids["bash"], "allow")] * 3
    sends = (session.sends(one) for one in verdicts)
    taken, refused = split(await asyncio.gather(*sends, return_exceptions=True))
    assert len({answer.data[0].id for answer in taken}) == 1
    assert (len(taken), refused) == (3, [400] * 3)
    if taken[0].data[0].result == "allow":
        await session.until("session.status_running", after=idle.id)
        await session.sends({"type": "user.interrupt"})
    await session.until("session.status_idle", where=ends_turn, after=idle.id)
    assert len(await session.events(types=["user.tool_confirmation"])) == 1


async def test_of_several_outcomes_at_once_one_is_worked_on(api: Api) -> None:
    session = await api.session()
    sends = (
        api.sdk.beta.sessions.events.send(session["id"], events=[outcome()])  # pyright: ignore[reportArgumentType]
        for _ in range(6)
    )
    taken, refused = split(await asyncio.gather(*sends, return_exceptions=True))
    assert (len(taken), refused) == (1, [400] * 5)
    shown = await api.sdk.beta.sessions.retrieve(session["id"])
    assert [one.result for one in shown.outcome_evaluations] == ["pending"]


async def test_a_session_that_is_deleted_while_it_is_sent_to_answers_each_in_the_envelope(api: Api) -> None:
    session = await api.session()
    path = f"/v1/sessions/{session['id']}"

    async def send(n: int) -> int:
        response = await api.post(f"{path}/events", {"events": [message(str(n))]})
        assert response.status_code in (200, 404), response.text
        return response.status_code

    async def rename(n: int) -> int:
        response = await api.post(path, {"title": str(n)})
        assert response.status_code in (200, 404), response.text
        return response.status_code

    first = await send(0)
    requests = [send(n) for n in range(1, 12)] + [rename(n) for n in range(12)]
    deleting = asyncio.create_task(api.http.delete(path))
    await asyncio.gather(*requests)
    assert (first, (await deleting).status_code) == (200, 200)
    assert (await api.get(path)).status_code == 404


async def test_results_in_one_request_and_messages_in_another_meet_in_one_turn(corral: Corral) -> None:
    session, call = await a_waiting_call(corral)
    await asyncio.gather(
        session.sends(custom_result(call, "found")), session.sends(message("a")), session.sends(message("b"))
    )
    await session.until("agent.message")
    await session.until("session.status_idle", where=ends_turn)
    events = await session.events()
    assert sum(event.type == "user.custom_tool_result" for event in events) == 1
    assert sum(event.type == "user.message" for event in events) == 3
    corral.model.assert_no_refusals()
