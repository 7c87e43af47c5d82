"""What a client and a worker of the state machine can do; its rules say when."""

from collections.abc import Callable
from typing import Any, ClassVar

import httpx
import msgspec
from hypothesis.stateful import RuleBasedStateMachine

from tests.chaos.machine_session import Event, Known
from tests.chaos.machine_worker import MachineWorker
from tests.chaos.machine_world import World


class Acting(RuleBasedStateMachine):
    """The sessions of one example, and what is done to them."""

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

    async def _run_call(self, session: Known, use: Event, variant: int) -> None:
        await session.check()
        before, allowed = session.result_of(use), session.runnable(use)
        begun = await self._worker.may_run(session.id, use["id"])
        text = f"ran {variant}" if begun else "the outcome of this call is unknown"
        key = self._worker.held[session.id].token
        answer = await self._send(session, tool_result(use, text), key=key)
        if answer.status_code == 401:
            self._worker.drop(session.id)
        if answer.status_code == 200:
            assert allowed, "a result for a call that nobody allowed was taken"
            shown = answer.json()["data"][0]
            assert before is None or (shown["id"], shown["content"][0]["text"]) == (before["id"], text)

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


def tool_result(use: Event, text: str) -> Event:
    """A worker's result of a call."""
    return {"type": "user.tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": text}]}
