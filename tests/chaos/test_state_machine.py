"""A state machine at the public API: whatever clients, workers and death do, the promises hold.

Each rule does one thing to a real server; after each, every promise that can be seen from outside is checked
for every session (`machine_session`). ``MACHINE_EXAMPLES``, ``MACHINE_STEPS`` and ``MACHINE_SEED`` run it for
longer, or otherwise.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
import hypothesis
import msgspec
from hypothesis import HealthCheck, Phase, settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from tests.chaos.machine_scripts import maybe_scripts, scripts
from tests.chaos.machine_session import Event, Known
from tests.chaos.machine_worker import MachineWorker
from tests.chaos.machine_world import TOOLS, World
from tests.databases import CleanDatabases

EXAMPLES: Final = int(os.environ.get("MACHINE_EXAMPLES", "10"))
STEPS: Final = int(os.environ.get("MACHINE_STEPS", "25"))
SEED: Final = int(os.environ.get("MACHINE_SEED", "20260401"))
SESSIONS: Final = 3

choices = strategies.integers(0, 999)
rush = strategies.booleans()
"""Whether the next step comes at once, before the session has settled."""


class Machine(RuleBasedStateMachine):
    """See the module's first lines."""

    world: ClassVar[World]

    def __init__(self) -> None:
        super().__init__()
        self._world = self.world
        self._worker = MachineWorker(self.world)
        self._sessions: list[Known] = []

    def _live(self) -> list[Known]:
        return [session for session in self._sessions if not session.ended]

    def _picked(self, pick: int) -> Known | None:
        live = self._live()
        return live[pick % len(live)] if live else None

    def _uses(self, wanted: Callable[[Known, Event], bool]) -> list[tuple[Known, Event]]:
        """Tool uses to act on: mostly open ones, but those that have their answer too."""
        every = [(one, use) for one in self._live() for use in one.uses() if wanted(one, use)]
        return [found for found in every if found[0].result_of(found[1]) is None] * 4 + every

    def _run(self, work: Any) -> Any:
        return self._world.run(work)

    def _message(self, session: Known | None, script: list[dict[str, Any]] | None) -> Event:
        name = self._world.unique("m")
        text = name
        if script is not None:
            played = [self._step(session, step) for step in script]
            text += f"\nscript: {msgspec.json.encode({'steps': played, 'run': name}).decode()}"
        return {"type": "user.message", "content": [{"type": "text", "text": text}]}

    def _step(self, session: Known | None, step: dict[str, Any]) -> dict[str, Any]:
        played = {key: value for key, value in step.items() if key not in ("hold", "tools")}
        if "tools" in step:
            played["tools"] = [{"name": name, "input": {"n": n}} for n, name in enumerate(step["tools"])]
        if step.get("hold") and session is not None:
            played["hold"] = self._world.unique("h")
            session.holds.append(played["hold"])
        return played

    async def _send(self, session: Known, *events: Event, key: str | None = None) -> httpx.Response:
        answer = await self._world.post(f"/v1/sessions/{session.id}/events", key=key, events=list(events))
        if answer.status_code == 200:
            for event in answer.json()["data"]:
                session.acknowledged[event["id"]] = event
        else:
            assert answer.status_code in (400, 401, 404), answer.text
        return answer

    async def _after(self, session: Known, hurry: bool) -> None:
        if not hurry:
            await session.settle()

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
        answer = await self._world.post("/v1/sessions", **body)
        assert answer.status_code == 200, answer.text
        session = Known(self._world, answer.json()["id"], kind)
        self._sessions.append(session)
        await session.follow()
        await session.settle()

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

    async def _judge(self, session: Known, use: Event, verdict: str, hurry: bool) -> None:
        await session.check()
        before, answered = session.verdict_on(use), session.result_of(use) is not None
        event = {"type": "user.tool_confirmation", "tool_use_id": use["id"], "result": verdict}
        answer = await self._send(session, event)
        if before is not None:
            expected = 200 if before["result"] == verdict else 400
            assert answer.status_code == expected, answer.text
            if expected == 200:
                assert answer.json()["data"][0]["id"] == before["id"]
        elif answered:
            assert answer.status_code == 400, answer.text
        await self._after(session, hurry)

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

    async def _answer_custom(self, session: Known, use: Event, variant: int) -> None:
        await session.check()
        before = session.result_of(use)
        content = [{"type": "text", "text": f"found {variant}"}]
        event = {"type": "user.custom_tool_result", "custom_tool_use_id": use["id"], "content": content}
        answer = await self._send(session, event)
        if before is not None:
            same = before["content"] == content
            assert answer.status_code == (200 if same else 400), answer.text
            assert not same or answer.json()["data"][0]["id"] == before["id"]

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

    async def _run_call(self, session: Known, use: Event, variant: int) -> None:
        await session.check()
        before, allowed = session.result_of(use), session.runnable(use)
        begun = await self._worker.may_run(session.id, use["id"])
        text = f"ran {variant}" if begun else "the outcome of this call is unknown"
        key = self._worker.held[session.id].token
        answer = await self._send(session, _tool_result(use, text), key=key)
        if answer.status_code == 401:
            self._worker.drop(session.id)
        if answer.status_code == 200:
            assert allowed, "a result for a call that nobody allowed was taken"
            shown = answer.json()["data"][0]
            assert before is None or (shown["id"], shown["content"][0]["text"]) == (before["id"], text)

    @rule(pick=choices)
    def a_worker_that_lost_its_lease_answers(self, pick: int) -> None:
        """Its token is good until another claims the item; whatever it does, a call has one result."""
        for session in self._live():
            token = self._worker.stale.get(session.id)
            if token and (uses := session.for_hands()):
                event = _tool_result(uses[pick % len(uses)], "from the one before")
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

    async def _drain(self) -> None:
        """Give every session what it waits for; then each must come to its end with every call answered."""
        for session in self._live():
            while session.holds:
                self._world.model.release(session.holds.pop(0))
            await session.settle()
            while await self._give(session):
                await session.settle()
            assert session.status == "idle"
            assert not session.open_calls()
            assert not session.waiting
        for session in self._sessions:
            await session.check()
            await session.close()
            if not session.deleted:
                await self._world.http.delete(f"/v1/sessions/{session.id}")
        self._world.model.assert_no_refusals()

    async def _go_on(self, pick: int) -> None:
        """Give some session what it waits for; rules that find nothing to act on do this instead.

        No rule has a precondition: what is possible depends on races, and the choice of rules must not.
        """
        if session := self._picked(pick):
            await session.check()
            if session.holds:
                self._world.model.release(session.holds.pop(0))
            else:
                await self._give(session)
            await session.settle()

    async def _give(self, session: Known) -> bool:
        for use in session.open_calls():
            if use["type"] == "agent.custom_tool_use":
                await self._answer_custom(session, use, 0)
            elif not session.runnable(use):
                await self._judge(session, use, "allow", True)
            else:
                if session.id not in self._worker.held:
                    await self._worker.poll(session.kind, {one.id for one in self._live()})
                if session.id not in self._worker.held:
                    await self._expect_work(session)
                await self._run_call(session, use, 0)
            return True
        return False

    async def _expect_work(self, session: Known) -> None:
        raise AssertionError(f"no work is on offer for {session.id}, whose calls wait for hands")


def _tool_result(use: Event, text: str) -> Event:
    return {"type": "user.tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": text}]}


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

        run_machine(
            hypothesis.seed(SEED)(MachineHere),
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                phases=(Phase.explicit, Phase.generate),
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
    clean_databases.give_back(url)
