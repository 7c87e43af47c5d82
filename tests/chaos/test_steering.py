"""Steering, in every order: messages, system messages, redirects, interrupts of one thread or all, verdicts,
budgets reached and changed, threads archived, workers and servers lost; the promises hold after each step.

Everything that `test_state_machine` does is done here too, to sessions of a coordinator.
"""

from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from hypothesis import strategies
from hypothesis.stateful import rule
from hypothesis.strategies import SearchStrategy

from tests.chaos.machine_scripts import Step, scripts
from tests.chaos.machine_session import Event, Known
from tests.chaos.machine_steered import LEAD, Steered, SteeredWorld
from tests.chaos.test_state_machine import Machine, choices, run, rush
from tests.databases import CleanDatabases

_SPENT: Final = {"input_tokens": 20_000, "output_tokens": 0}
"""Ten cents of a model at $5 per million tokens."""

_tasks: SearchStrategy[list[list[Step]]] = strategies.lists(scripts, min_size=1, max_size=2)


@strategies.composite
def _orders(draw: strategies.DrawFn) -> list[Step]:
    """What a coordinator plays: it has others work, perhaps beside calls of its own, and goes on."""
    first: Step = {"tasks": draw(_tasks)}
    if draw(strategies.booleans()):
        first["tools"] = draw(strategies.sampled_from([["bash"], ["look_up"], ["read", "look_up"]]))
    if draw(strategies.booleans()):
        first["usage"] = _SPENT
    last: Step = {"text": "and so on", "hold": draw(strategies.booleans())}
    if draw(strategies.booleans()):
        last["usage"] = _SPENT
    return [first, last]


orders: Final = _orders()


class Steering(Machine):
    """See the module's first lines."""

    def _more(self, kind: str) -> dict[str, Any]:
        # Every other session has a budget, so that whether it has one depends on the rules alone.
        return {} if len(self._sessions) % 2 else {"budget": _budget(25)}

    def _known(self, session_id: str, kind: str) -> Known:
        return Steered(self._world, session_id, kind)

    def _step(self, session: Known | None, step: dict[str, Any]) -> dict[str, Any]:
        tasks = step.get("tasks", [])
        played = super()._step(session, {key: value for key, value in step.items() if key != "tasks"})
        for task in tasks:
            script = {"steps": [self._step(session, one) for one in task], "run": self._world.unique("t")}
            text = f"do it\nscript: {msgspec.json.encode(script).decode()}"
            call = {"name": "ant__create_agent", "input": {"agent": LEAD, "task": text}}
            played.setdefault("tools", []).append(call)
        return played

    async def _say(self, session: Known, script: list[dict[str, Any]] | None, hurry: bool) -> None:
        await self._steer(session, self._message(session, script), hurry=hurry)

    async def _steer(self, session: Known, *events: Event, hurry: bool) -> httpx.Response:
        """Send what a session takes unless it waits for the client, or has used up its budget."""
        answer = await self._send(session, *events)
        if answer.status_code != 200:
            await session.settle()
            assert answer.status_code == 400, answer.text
            assert session.stopped_by() == "requires_action" or await self._has_spent_all(session), (
                answer.text
            )
        await self._after(session, hurry)
        return answer

    async def _has_spent_all(self, session: Known) -> bool:
        """Whether its budget is used up: an interrupt of what was open then has ended the turn."""
        shown = (await self._world.get(f"/v1/sessions/{session.id}")).json()
        limit = shown["budget"]
        return limit is not None and int(shown["usage"]["list_cost"]["amount"]) >= int(
            limit["max_list_cost"]["amount"]
        )

    @rule(pick=choices, script=orders, hurry=rush)
    def others_are_set_to_work(self, pick: int, script: list[Step], hurry: bool) -> None:
        if session := self._picked(pick):
            self._run(self._say(session, script, hurry))

    @rule(pick=choices, alone=rush, script=scripts, hurry=rush)
    def a_system_message_is_sent(self, pick: int, alone: bool, script: list[Step], hurry: bool) -> None:
        if session := self._picked(pick):
            told = {
                "type": "system.message",
                "content": [{"type": "text", "text": self._world.unique("s")}],
            }
            events = [told] if alone else [self._message(session, script), told]
            self._run(self._steer(session, *events, hurry=hurry))

    @rule(pick=choices, redirect=rush)
    def a_session_at_rest_is_interrupted(self, pick: int, redirect: bool) -> None:
        """What is interrupted rests, with every call answered; a redirect is what it does next."""
        if session := self._picked(pick):
            self._run(self._interrupt_at_rest(session, redirect))

    async def _interrupt_at_rest(self, session: Known, redirect: bool) -> None:
        await session.settle()
        waited = bool(session.waiting)
        events: list[Event] = [{"type": "user.interrupt"}]
        if redirect:
            events.append(self._message(session, [{"text": "instead"}]))
        answer = await self._send(session, *events)
        await session.settle()
        if answer.status_code != 200:
            assert answer.status_code == 400, answer.text
            assert redirect
            assert await self._has_spent_all(session)
        elif not waited and session.kind == "cloud":
            assert session.status == "idle"
            assert not session.open_calls()

    @rule(pick=choices, which=choices, hurry=rush)
    def a_thread_is_interrupted(self, pick: int, which: int, hurry: bool) -> None:
        if found := self._children():
            session, thread = found[(pick + which) % len(found)]
            self._run(self._interrupt_thread(session, thread, hurry))
        else:
            self._run(self._go_on(pick))

    async def _interrupt_thread(self, session: Steered, thread: str, hurry: bool) -> None:
        await session.check()
        ended = session.threads[thread]["status"] == "terminated"
        answer = await self._send(session, {"type": "user.interrupt", "session_thread_id": thread})
        assert answer.status_code == (400 if ended else 200) or answer.status_code == 400, answer.text
        await self._after(session, hurry)

    @rule(pick=choices, which=choices, hurry=rush)
    def a_thread_is_archived(self, pick: int, which: int, hurry: bool) -> None:
        if found := self._children():
            session, thread = found[(pick + which) % len(found)]
            self._run(self._archive_thread(session, thread, hurry))
        else:
            self._run(self._go_on(pick))

    async def _archive_thread(self, session: Steered, thread: str, hurry: bool) -> None:
        answer = await self._world.post(f"/v1/sessions/{session.id}/threads/{thread}/archive")
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 200:
            await session.check()
            assert session.threads[thread]["status"] == "terminated"
        await self._after(session, hurry)

    def _children(self) -> list[tuple[Steered, str]]:
        steered = [session for session in self._live() if isinstance(session, Steered)]
        return [(session, thread) for session in steered for thread in session.threads]

    @rule(pick=choices, cents=strategies.sampled_from([1, 15, 60, None]), hurry=rush)
    def a_budget_is_changed(self, pick: int, cents: int | None, hurry: bool) -> None:
        """To what was spent and so much more; `None` removes it."""
        if session := self._picked(pick):
            self._run(self._change_budget(session, cents, hurry))

    async def _change_budget(self, session: Known, cents: int | None, hurry: bool) -> None:
        path = f"/v1/sessions/{session.id}"
        shown = (await self._world.get(path)).json()
        spent = int(shown["usage"]["list_cost"]["amount"])
        wanted = None if cents is None else _budget(spent + cents)
        answer = await self._world.post(path, budget=wanted)
        if shown["budget"] is None:
            assert answer.status_code == (200 if cents is None else 400), answer.text
        else:
            # What runs may spend more in between.
            assert answer.status_code == 200 or shown["status"] == "running", answer.text
        await self._after(session, hurry)

    async def _give(self, session: Known) -> bool:
        if isinstance(session, Steered) and session.paused:
            await self._change_budget(session, None, True)
            return True
        if await super()._give(session):
            return True
        if session.waiting:  # a system message, which goes with the next message
            await self._send(session, self._message(session, None))
            return True
        return False


def _budget(cents: int) -> dict[str, Any]:
    return {"type": "limit", "max_list_cost": {"amount": str(cents), "currency": "USD"}}


def test_the_promises_hold_however_a_coordinators_session_is_steered(
    clean_databases: CleanDatabases, tmp_path: Path
) -> None:
    url = clean_databases.take()
    with SteeredWorld(url, str(tmp_path / "server.log")) as opened:

        class SteeringHere(Steering):
            world = opened

        run(SteeringHere)
    clean_databases.give_back(url)
