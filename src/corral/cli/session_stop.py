"""Stops a session whatever its worker does, and says what holds it where that fails."""

import asyncio
from contextlib import aclosing
from typing import Any

import msgspec

from corral.cli.api_client import ApiClient, Event, Refused
from corral.cli.chat_replies import interrupt
from corral.cli.session_facts import Facts, facts_of, now
from corral.cli.session_feed import SessionFeed, is_step, recent, require

_SETTLED = frozenset({"idle", "terminated"})


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a stop."""

    session_id: str
    stopped: bool
    story: str
    held_by: tuple[str, ...] = ()
    """What keeps it from stopping, in plain words."""


async def look(api: ApiClient, session_id: str) -> tuple[dict[str, Any], Facts]:
    """A session and its facts; raises `Failure` if there is none of this id."""
    await require(api, session_id)
    events = await recent(api, session_id, is_step)
    # After the events: a message that was no longer waiting then has set the session running by now.
    session = await require(api, session_id)
    try:
        session["hands"] = (await api.get(f"/corral/v1/sessions/{session_id}/hands"))["data"]
    except Refused:
        pass  # not a Corral, or not an API key
    return session, facts_of(session, events, now())


async def look_closely(api: ApiClient, session_id: str) -> tuple[dict[str, Any], Facts]:
    """The same, with what was decided about the hosts that its sandbox asked for (`egress`)."""
    session, facts = await look(api, session_id)
    try:
        session["egress"] = (await api.get(f"/corral/v1/sessions/{session_id}/egress"))["data"]
    except Refused:
        pass  # not a Corral, or not an API key
    return session, facts


async def stop_session(api: ApiClient, session_id: str, timeout: float) -> Outcome:
    """Interrupt, and wait at most ``timeout`` seconds until nothing goes on and nothing waits to go on."""
    session, facts = await look(api, session_id)
    if _at_rest(session, facts):
        return Outcome(session_id=session_id, stopped=True, story=f"It was not at work. {facts.story}")
    try:
        async with asyncio.timeout(timeout):
            await _until_at_rest(api, session_id)
    except TimeoutError:
        return await _held(api, session_id, timeout)
    return Outcome(session_id=session_id, stopped=True, story="Stopped.")


async def _until_at_rest(api: ApiClient, session_id: str) -> None:
    feed = SessionFeed(api, session_id, trouble=_quiet)
    async with aclosing(feed.follow()) as following:
        async for news in following:
            if isinstance(news, list) or _begins_again(news):
                await api.send(session_id, interrupt())
            elif news["type"] == "session.status_idle":
                session, facts = await look(api, session_id)
                if _at_rest(session, facts):
                    return


def _quiet(_: str | None) -> None:
    """A connection that comes back in time is no news; one that does not ends in a report."""


def _begins_again(event: Event) -> bool:
    return event["type"] == "session.status_running"


def _at_rest(session: dict[str, Any], facts: Facts) -> bool:
    return session["status"] in _SETTLED and not facts.calls and not facts.queued


async def _held(api: ApiClient, session_id: str, timeout: float) -> Outcome:
    session, facts = await look(api, session_id)
    held: list[str] = []
    if facts.interrupt_waits:
        held.append("No server has taken up the interrupt: is one running? `corral doctor` checks.")
    if facts.queued:
        held.append(f"{facts.queued} message(s) still wait and would start it again.")
    if any(call.need == "worker" for call in facts.calls):
        held.append(await _workers(api, session["environment_id"]))
    return Outcome(
        session_id=session_id,
        stopped=False,
        story=f"It has not stopped within {timeout:g} s. {facts.story}",
        held_by=tuple(held),
    )


async def _workers(api: ApiClient, environment_id: str) -> str:
    try:
        stats = await api.get(f"/v1/environments/{environment_id}/work/stats")
    except Refused as refused:
        return refused.message
    return (
        f"Workers seen on environment {environment_id} in the last half minute: {stats['workers_polling']}; "
        f"work items waiting for one: {stats['depth'] + stats['pending']}."
    )
