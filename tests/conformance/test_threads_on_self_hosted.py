"""The official Python worker runs the tools of child threads, which it finds in the session's stream."""

from pathlib import Path

from tests.conformance.premises import TOOLSET, Premises, bash, ends_turn, text_of
from tests.conformance.python_tools import BRIEFLY
from tests.corral_server import SessionUnderTest
from tests.e2e.coordinating import starts


async def test_a_childs_calls_are_run_by_the_sessions_worker(premises: Premises, open_folder: Path) -> None:
    corral = premises.corral
    member = await corral.agent(TOOLSET, name="one")
    lead = await corral.agent(TOOLSET, name="lead", multiagent={"type": "coordinator", "agents": [member]})
    made = await corral.client.beta.sessions.create(agent=lead, environment_id=premises.environment_id)
    session = SessionUnderTest(corral, made.id)
    steps = [{"tools": [starts("one", bash("echo $((6*7))"), {"text": "done"})]}, {"text": "ok"}]
    await session.says("go", script=steps)
    async with premises.running(workdir=open_folder, max_idle=BRIEFLY):
        await session.until("session.status_idle", where=ends_turn)
    events = await session.events()
    [use] = [event for event in events if event.type == "agent.tool_use"]
    [result] = [event for event in events if event.type == "user.tool_result"]
    assert use.session_thread_id == result.session_thread_id is not None
    assert text_of(result) == "42"
