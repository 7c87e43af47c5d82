"""Whoever changes a log in the database is found out: by digests, by seals, or by a head that was kept."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from corral.session.chain import StoredEvent, digested
from corral.session.sealing import EVENT_COLUMNS, Sealing
from corral.session.seals import SigningKey
from corral.settings import Brain, Chain, Inference, Settings
from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest, running_corral

KEY = SigningKey.generate()


@pytest_asyncio.fixture
async def sealed(database_url: str, model: ScriptedModel) -> AsyncGenerator[Corral]:
    """A server with a signing key, which seals only when a test says so."""
    settings = Settings(
        inference=Inference(provider="gateway", base_url=model.base_url, retry_backoff_seconds=0.01),
        brain=Brain(lease_seconds=2.0),
        chain=Chain(signing_key=KEY.text, seal_seconds=3600.0),
    )
    async with running_corral(database_url, model, settings=settings) as running:
        yield running


async def seal(corral: Corral, key: SigningKey | None = KEY) -> int:
    """Seal all there is."""
    sealing = Sealing(corral.database, key, set(), seconds=3600.0)
    await sealing.find_missed()
    return await sealing.seal()


async def worked(corral: Corral, *, seals: bool = True) -> SessionUnderTest:
    """A session of two turns, the first of which is sealed if wished."""
    session = await corral.session()
    await session.says("hello", script=[{"text": "one"}])
    first = await session.idle()
    if seals:
        assert await seal(corral) == 1
    await session.says("more", script=[{"text": "two"}])
    await session.idle(after=first.id)
    return session


async def verified(session: SessionUnderTest, **query: str) -> dict[str, Any]:
    path = f"/v1/sessions/{session.id}/verify"
    found: Any = await session.corral.client.get(path, cast_to=object, options={"params": query})
    return found


async def tamper(session: SessionUnderTest, statement: Any, *values: Any) -> None:
    assert await session.corral.database.execute(statement, (*values, session.id)) > 0


async def recompute(session: SessionUnderTest) -> None:
    """What somebody does who knows how digests are made: make all of them anew."""
    rows = await session.corral.database.fetch(
        "select " + EVENT_COLUMNS + " from events where session_id = %s order by seq", (session.id,)
    )
    for row in rows:
        event = StoredEvent(**row)
        await tamper(
            session,
            "update events set digest = %s where seq = %s and session_id = %s",
            digested(event, event.seq - 1, b""),
            event.seq,
        )


async def test_a_log_that_nobody_touched_is_intact(sealed: Corral) -> None:
    session = await worked(sealed)
    events = await session.events()
    found = await verified(session)
    assert found["intact"]
    assert found["problem"] is None
    assert found["events"] == found["head"]["seq"] == len(events)
    assert (found["undigested"], found["signed"], found["public_keys"]) == (0, True, [KEY.public.text])
    assert 0 < found["sealed_through"] < len(events)
    await seal(sealed)
    again = await verified(session)
    assert again["sealed_through"] == len(events)
    assert again["head"] == found["head"]


ALTERATIONS: dict[str, tuple[str, str]] = {
    "a body": ('update events set body = \'{"id":"x"}\' where seq = 4 and session_id = %s', "altered"),
    "what is kept of it": ("update events set private = '{}' where seq = 4 and session_id = %s", "altered"),
    "its type": ("update events set type = 'user.message' where seq = 4 and session_id = %s", "altered"),
    "its id": ("update events set id = 'sevt_x' where seq = 4 and session_id = %s", "altered"),
    "its thread": ("update events set thread_id = 'sthr_x' where seq = 4 and session_id = %s", "altered"),
    "what it answers": ("update events set resolves = 'x' where seq = 4 and session_id = %s", "altered"),
    "who sees it": ("update events set crossposted = 1 where seq = 4 and session_id = %s", "altered"),
    "it is gone": ("delete from events where seq = 4 and session_id = %s", "missing"),
}


@pytest.mark.parametrize("name", ALTERATIONS)
async def test_what_was_done_to_an_event_is_named(sealed: Corral, name: str) -> None:
    session = await worked(sealed, seals=False)
    statement, kind = ALTERATIONS[name]
    await tamper(session, statement)
    found = await verified(session)
    assert not found["intact"]
    assert (found["problem"]["kind"], found["problem"]["seq"]) == (kind, 4)


async def test_events_that_have_changed_places_are_named(sealed: Corral) -> None:
    session = await worked(sealed, seals=False)
    for before, after in ((5, 1000), (7, 5), (1000, 7)):
        await tamper(session, "update events set seq = %s where seq = %s and session_id = %s", after, before)
    assert (await verified(session))["problem"]["seq"] == 5


async def test_an_end_that_was_cut_off_is_missed(sealed: Corral) -> None:
    session = await worked(sealed)
    last = (await verified(session))["events"]
    await tamper(session, "delete from events where seq > %s and session_id = %s", last - 2)
    found = (await verified(session))["problem"]
    assert (found["kind"], found["seq"]) == ("missing", last - 1)


async def test_an_end_that_was_cut_off_with_its_session_is_missed_by_its_seal(sealed: Corral) -> None:
    session = await worked(sealed)
    await seal(sealed)
    last = (await verified(session))["events"]
    await tamper(session, "delete from events where seq > %s and session_id = %s", last - 2)
    await tamper(session, "update sessions set last_seq = %s where id = %s", last - 2)
    found = (await verified(session))["problem"]
    assert (found["kind"], found["seq"]) == ("missing", last - 1)


async def test_an_event_that_was_added_is_named(sealed: Corral) -> None:
    session = await worked(sealed)
    last = (await verified(session))["events"]
    await tamper(
        session,
        "insert into events (session_id, seq, id, thread_id, type, body, processed_at)"
        " select session_id, %s, id, thread_id, type, body, processed_at from events where seq = 1"
        " and session_id = %s",
        last + 1,
    )
    assert (await verified(session))["problem"]["seq"] == last + 1


@pytest.mark.parametrize(
    "statement",
    [
        'update events set body = \'{"id":"x"}\' where seq = 2 and session_id = %s',
        "update events set processed_at = processed_at - interval '1 hour' where seq = 2 and session_id = %s",
    ],
)
async def test_a_change_before_a_seal_shows_though_all_digests_were_made_anew(
    sealed: Corral, statement: str
) -> None:
    session = await worked(sealed)
    through = (await verified(session))["sealed_through"]
    await tamper(session, statement)
    await recompute(session)
    found = (await verified(session))["problem"]
    assert found["kind"] == "altered"
    assert found["seq"] == 1
    assert f"from 1 to {through}" in found["message"]


async def test_a_head_that_was_kept_shows_what_no_seal_does(sealed: Corral) -> None:
    session = await worked(sealed, seals=False)
    head = (await verified(session))["head"]
    kept = f"{head['seq']}:{head['head']}"
    assert (await verified(session, head=kept))["intact"]
    await session.says("again", script=[{"text": "three"}])
    await session.idle(after=(await session.events())[-1].id)
    assert (await verified(session, head=kept))["intact"]
    await tamper(session, 'update events set body = \'{"id":"x"}\' where seq = 2 and session_id = %s')
    await recompute(session)
    assert (await verified(session))["intact"]
    found = (await verified(session, head=kept))["problem"]
    assert (found["kind"], found["seq"]) == ("head", 1)


SEAL_ALTERATIONS: dict[str, tuple[str, ...]] = {
    "another head": ("update chain_seal_entries set head = sha256('x') where number = 1",),
    "another time": ("update chain_seals set sealed_at = now() where number = 1",),
    "no signature": ("update chain_seals set signature = null, key_id = null where number = 1",),
    "taken out": (
        "delete from chain_seal_entries where number = 2",
        "delete from chain_seals where number = 2",
    ),
}


@pytest.mark.parametrize("name", SEAL_ALTERATIONS)
async def test_seals_cannot_be_changed_or_taken_out_of_the_middle(sealed: Corral, name: str) -> None:
    session = await worked(sealed)
    for _ in range(2):
        other = await worked(sealed, seals=False)
        await seal(sealed)
        assert (await verified(other))["intact"]
    for statement in SEAL_ALTERATIONS[name]:
        await sealed.database.execute(statement)  # pyright: ignore[reportArgumentType]
    found = await verified(session)
    assert not found["intact"]
    assert found["problem"]["kind"] in ("seal", "altered")


async def test_a_seal_of_another_key_does_not_count(sealed: Corral) -> None:
    session = await worked(sealed, seals=False)
    await seal(sealed, SigningKey.generate())
    found = (await verified(session))["problem"]
    assert found["kind"] == "seal"
    assert "not signed by a key that this server knows" in found["message"]


async def test_what_was_written_before_there_were_digests_is_covered_once_sealed(sealed: Corral) -> None:
    session = await worked(sealed, seals=False)
    await tamper(session, "update events set digest = null where seq < 5 and session_id = %s")
    await seal(sealed)
    found = await verified(session)
    assert (found["intact"], found["undigested"]) == (True, 4)
    await tamper(session, 'update events set body = \'{"id":"x"}\' where seq = 2 and session_id = %s')
    assert (await verified(session))["problem"]["seq"] == 1


async def test_inputs_are_chained_as_they_were_taken_up(sealed: Corral) -> None:
    session = await sealed.session()
    await session.says("hello", script=[{"text": "one", "hold": "first"}, {"text": "two"}])
    await sealed.model.until_holding("first")
    await session.says("and this")
    sealed.model.release("first")
    await session.idle()
    assert (await verified(session))["intact"]
    [late] = [e for e in await session.events() if e.type == "user.message"][1:]
    moved = (
        "update events set processed_at = processed_at - interval '1 ms' where id = %s and session_id = %s"
    )
    await seal(sealed)
    await tamper(session, moved, late.id)
    assert (await verified(session))["problem"]["kind"] == "altered"


async def test_a_server_seals_what_it_writes_by_itself(database_url: str, model: ScriptedModel) -> None:
    settings = Settings(
        inference=Inference(provider="gateway", base_url=model.base_url),
        chain=Chain(signing_key=KEY.text, seal_seconds=0.05),
    )
    async with running_corral(database_url, model, settings=settings) as corral:
        session = await worked(corral, seals=False)
        async with asyncio.timeout(30):
            while (found := await verified(session))["sealed_through"] < found["events"]:
                pass
        assert found["intact"]


async def test_forks_have_a_chain_of_their_own(sealed: Corral) -> None:
    session = await worked(sealed)
    made: Any = await sealed.client.post(f"/v1/sessions/{session.id}/fork", cast_to=object, body={})
    fork = SessionUnderTest(sealed, made["id"])
    assert (await verified(fork))["intact"]
    origin: Any = await sealed.client.get(f"/v1/sessions/{fork.id}/origin", cast_to=object)
    head = (await verified(session))["head"]
    assert (origin["origin"]["seq"], origin["origin"]["head"]) == (head["seq"], head["head"])
    await tamper(fork, 'update events set body = \'{"id":"x"}\' where seq = 3 and session_id = %s')
    assert (await verified(fork))["problem"]["seq"] == 3
    assert (await verified(session))["intact"]
