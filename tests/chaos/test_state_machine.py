"""A state machine at the public API: whatever clients, workers and death do, the promises hold.

Each rule does one thing to a real server; after each, every promise that can be seen from outside is checked
for every session (`machine_session`). ``MACHINE_EXAMPLES``, ``MACHINE_STEPS`` and ``MACHINE_SEED`` run it for
longer, or otherwise.
"""

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import httpx
import hypothesis
from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from tests.chaos.machine_acts import Acting, tool_result
from tests.chaos.machine_scripts import maybe_scripts, scripts
from tests.chaos.machine_session import Event, Known
from tests.chaos.machine_world import TOOLS, World
from tests.databases import CleanDatabases

EXAMPLES: Final = int(os.environ.get("MACHINE_EXAMPLES", "10"))
STEPS: Final = int(os.environ.get("MACHINE_STEPS", "25"))
SEED: Final = int(os.environ.get("MACHINE_SEED", "20260401"))
SESSIONS: Final = 3

choices = strategies.integers(0, 999)
rush = strategies.booleans()
"""Whether the next step comes at once, before the session has settled."""


class Machine(Acting):
    """See the module's first lines."""

    @initialize(kind=strategies.sampled_from(["cloud", "self_hosted"]), script=scripts)
    def the_first_session(self, kind: str, script: list[dict[str, Any]]) -> None:
        self._run(self._create(kind, None))
        self._run(self._say(self._sessions[0], script, False))

    @rule(kind=strategies.sampled_from(["cloud", "self_hosted"]), script=maybe_scripts)
    def a_session_is_made(self, kind: str, script: list[dict[str, Any]] | None) -> None:
        if len(self._live()) < SESSIONS:
            self._run(self._create(kind, script))
        else:
            self._run(self._go_on(0))

    async def _create(self, kind: str, script: list[dict[str, Any]] | None) -> None:
        body: dict[str, Any] = {"agent": self._world.agent, "environment_id": self._world.environments[kind]}
        if script is not None:
            body["initial_events"] = [self._message(None, script)]
        body |= self._more(kind)
        answer = await self._world.post("/v1/sessions", **body)
        assert answer.status_code == 200, answer.text
        session = self._known(answer.json()["id"], kind)
        self._sessions.append(session)
        await session.follow()
        await session.settle()

    def _more(self, kind: str) -> dict[str, Any]:
        """What else a session is created with."""
        return {}

    def _known(self, session_id: str, kind: str) -> Known:
        return Known(self._world, session_id, kind)

    @rule(pick=choices, script=maybe_scripts, hurry=rush)
    def a_message_is_sent(self, pick: int, script: list[dict[str, Any]] | None, hurry: bool) -> None:
        if session := self._picked(pick):
            self._run(self._say(session, script, hurry))

    async def _say(self, session: Known, script: list[dict[str, Any]] | None, hurry: bool) -> None:
        answer = await self._send(session, self._message(session, script))
        assert answer.status_code == 200, answer.text
        await self._after(session, hurry)

    @rule(pick=choices, redirect=rush, hurry=rush)
    def an_interrupt_is_sent(self, pick: int, redirect: bool, hurry: bool) -> None:
        busy = [session for session in self._live() if session.busy]
        if session := busy[pick % len(busy)] if busy else self._picked(pick):
            events: list[Event] = [{"type": "user.interrupt"}]
            if redirect:
                events.append(self._message(session, [{"text": "instead"}]))
            answer = self._run(self._send(session, *events))
            assert answer.status_code == 200, answer.text
            self._run(self._after(session, hurry))

    @rule(pick=choices, hurry=rush)
    def the_model_goes_on(self, pick: int, hurry: bool) -> None:
        if holding := [session for session in self._live() if session.holds]:
            session = holding[pick % len(holding)]
            self._world.model.release(session.holds.pop(0))
            self._run(self._after(session, hurry))
        else:
            self._run(self._go_on(pick))

    @rule(pick=choices, which=choices, verdict=strategies.sampled_from(["allow", "deny"]), hurry=rush)
    def a_verdict_is_given(self, pick: int, which: int, verdict: str, hurry: bool) -> None:
        asked = self._uses(lambda session, use: use.get("evaluated_permission") == "ask")
        if asked:
            session, use = asked[(pick + which) % len(asked)]
            self._run(self._judge(session, use, verdict, hurry))
        else:
            self._run(self._go_on(pick))

    @rule(pick=choices, variant=strategies.integers(0, 1), twice=rush, hurry=rush)
    def a_custom_tool_is_answered(self, pick: int, variant: int, twice: bool, hurry: bool) -> None:
        """Open or not: a late answer, the same again, another one."""
        called = self._uses(lambda session, use: use["type"] == "agent.custom_tool_use")
        if called:
            session, use = called[pick % len(called)]
            for _ in range(1 + twice):
                self._run(self._answer_custom(session, use, variant))
            self._run(self._after(session, hurry))
        else:
            self._run(self._go_on(pick))

    @rule(kind=strategies.sampled_from(["cloud", "self_hosted"]))
    def a_worker_polls(self, kind: str) -> None:
        self._run(self._worker.poll(kind, {session.id for session in self._live()}))

    @rule(pick=choices, variant=strategies.integers(0, 1), twice=rush, hurry=rush)
    def a_worker_runs_a_call(self, pick: int, variant: int, twice: bool, hurry: bool) -> None:
        held = self._worker.held
        found = self._uses(lambda session, use: session.id in held and use["type"] == "agent.tool_use")
        if found:
            session, use = found[pick % len(found)]
            for _ in range(1 + twice):
                self._run(self._run_call(session, use, variant))
            self._run(self._after(session, hurry))
        else:
            self._run(self._go_on(pick))

    @rule(pick=choices)
    def a_worker_that_lost_its_lease_answers(self, pick: int) -> None:
        """Its token is good until another claims the item; whatever it does, a call has one result."""
        for session in self._live():
            token = self._worker.stale.get(session.id)
            if token and (uses := session.for_hands()):
                event = tool_result(uses[pick % len(uses)], "from the one before")
                answer = self._run(self._send(session, event, key=token))
                if session.id in self._worker.held:
                    assert answer.status_code == 401, answer.text

    @rule(pick=choices, silently=rush)
    def a_worker_is_lost(self, pick: int, silently: bool) -> None:
        if held := sorted(self._worker.held):
            session_id = held[pick % len(held)]
            self._run(self._worker.lose(session_id) if silently else self._worker.stop(session_id))
        else:
            self._run(self._go_on(pick))

    @rule(pick=choices)
    def a_brains_lease_runs_out(self, pick: int) -> None:
        if session := self._picked(pick):
            self._run(self._expire(session))

    async def _expire(self, session: Known) -> None:
        await self._world.database.execute(
            "update wakes set lease_until = clock_timestamp() - interval '1 second'"
            " where session_id = %s and lease_until is not null",
            (session.id,),
        )
        await session.settle()

    @rule(pick=choices, after=strategies.integers(0, 8), script=maybe_scripts)
    def the_server_is_killed(self, pick: int, after: int, script: list[dict[str, Any]] | None) -> None:
        """Some changes after a message was sent, and started again."""
        self._run(self._kill(self._picked(pick), after, script))

    async def _kill(self, session: Known | None, after: int, script: list[dict[str, Any]] | None) -> None:
        sending = None
        if session is not None and after > 0:
            message = self._message(session, script)
            session.uncertain.append(message["content"][0]["text"])
            sending = asyncio.create_task(self._send(session, message))
            await self._world.until_changes(after - 1, 0.3)
        await self._world.server.kill()
        if sending is not None:
            (outcome,) = await asyncio.gather(sending, return_exceptions=True)
            assert isinstance(outcome, httpx.Response | httpx.TransportError), outcome
        await self._world.server.start()
        for known in self._sessions:
            await known.follow()
            await known.settle()

    @rule(pick=choices, title=strategies.sampled_from(["a", "b", None]), tools=rush, hurry=rush)
    def a_session_is_updated(self, pick: int, title: str | None, tools: bool, hurry: bool) -> None:
        if session := self._picked(pick):
            self._run(self._update(session, title, tools, hurry))

    async def _update(self, session: Known, title: str | None, tools: bool, hurry: bool) -> None:
        body: dict[str, Any] = {"title": title, "metadata": {"n": str(title)}}
        if tools:
            asks = {"name": "bash", "permission_policy": {"type": "always_ask"}}
            toolset = {**TOOLS[0], "configs": [*TOOLS[0]["configs"], asks]}
            body["agent"] = {"tools": [toolset if title else TOOLS[0], TOOLS[1]]}
        answer = await self._world.post(f"/v1/sessions/{session.id}", **body)
        assert answer.status_code == 200 or (tools and answer.status_code == 400), answer.text
        await self._after(session, hurry)

    @rule(pick=choices, delete=rush, first=rush)
    def a_session_is_ended(self, pick: int, delete: bool, first: bool) -> None:
        """Perhaps with a message that was sent just before."""
        if len(self._live()) > 1 and (session := self._picked(pick)):
            self._run(self._end(session, delete, first))

    async def _end(self, session: Known, delete: bool, first: bool) -> None:
        if first:
            await self._send(session, self._message(session, None))
        path = f"/v1/sessions/{session.id}"
        request = self._world.http.delete(path) if delete else self._world.post(f"{path}/archive")
        answer = await request
        assert answer.status_code in (200, 400), answer.text
        session.ended = answer.status_code == 200
        session.deleted = session.ended and delete
        await session.settle()
        if not session.ended:
            return
        self._worker.held.pop(session.id, None)
        late = await self._send(session, self._message(None, None))
        assert late.status_code == (404 if delete else 400), late.text
        await self._world.until(lambda: _streams_end(session, delete))

    @invariant()
    def every_promise_holds(self) -> None:
        for session in self._sessions:
            self._run(session.check_news())
        self._world.model.assert_no_refusals()

    def teardown(self) -> None:
        self._run(self._drain())


async def _streams_end(session: Known, deleted: bool) -> str | None:
    for reader in session.readers:
        if not reader.ended:
            return "a stream of an ended session is open"
        assert reader.last == ("session.deleted" if deleted else "session.status_terminated")
    return None


def test_the_promises_hold_whatever_clients_workers_and_death_do(
    clean_databases: CleanDatabases, tmp_path: Path
) -> None:
    print(f"MACHINE_SEED={SEED} MACHINE_EXAMPLES={EXAMPLES} MACHINE_STEPS={STEPS}, log: {tmp_path}")
    url = clean_databases.take()
    with World(url, str(tmp_path / "server.log")) as opened:

        class MachineHere(Machine):
            world = opened

        run(MachineHere)
    clean_databases.give_back(url)


def run(machine: type[Machine]) -> None:
    """Run a machine for as many examples as asked for, always the same ones for a seed."""
    run_machine(
        hypothesis.seed(SEED)(machine),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
