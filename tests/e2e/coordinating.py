"""A coordinator and those who work for it, driven by scripts: what the tests of threads share."""

from typing import Any

import msgspec

from tests.corral_server import Corral, SessionUnderTest

TOOLSET: dict[str, Any] = {"type": "agent_toolset_20260401"}
CUSTOM: dict[str, Any] = {
    "type": "custom",
    "name": "look_up",
    "description": "Looks something up.",
    "input_schema": {"type": "object", "properties": {"what": {"type": "string"}}},
}


def played(*steps: dict[str, Any], say: str = "do it") -> str:
    """A text that has the model play these steps."""
    return f"{say}\nscript: {msgspec.json.encode(list(steps)).decode()}"


def starts(agent: str, *steps: dict[str, Any], say: str = "do it") -> dict[str, Any]:
    """A coordinator's call that starts an agent, which plays these steps."""
    return {"name": "ant__create_agent", "input": {"agent": agent, "task": played(*steps, say=say)}}


def defines(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
    """A coordinator's call that defines an agent and starts it."""
    given = {"name": name, "instructions": f"You are {name}.", "task": played(*steps)}
    return {"name": "ant__create_agent", "input": given}


async def coordinated(
    corral: Corral, *agents: str, tools: list[Any] | None = None, kind: str = "cloud", **fields: Any
) -> SessionUnderTest:
    """A session of a coordinator that has agents of these names; `tools` are those of the agents."""
    members = [await corral.agent(*(tools or []), name=name, description=f"Does {name}.") for name in agents]
    block = {"type": "coordinator", "agents": [*members, {"type": "self"}]}
    made = await corral.client.beta.sessions.create(
        agent=await corral.agent(name="lead", multiagent=block, **fields),
        environment_id=await corral.environment(kind),
    )
    return SessionUnderTest(corral, made.id)


async def threads(session: SessionUnderTest, **query: Any) -> list[Any]:
    """The session's threads, the primary one first."""
    listed = session.corral.client.beta.sessions.threads.list(session.id, **query)
    return [thread async for thread in listed]


async def children(session: SessionUnderTest) -> dict[str, Any]:
    """The session's child threads by the name of their agent."""
    return {thread.agent.name: thread for thread in await threads(session) if thread.parent_thread_id}


async def thread_events(session: SessionUnderTest, thread_id: str) -> list[Any]:
    """A thread's events."""
    events = session.corral.client.beta.sessions.threads.events
    return [event async for event in events.list(thread_id, session_id=session.id)]


def ended(idle: Any) -> bool:
    """Whether an idle event ends a turn."""
    return idle.stop_reason.type == "end_turn"


def asks(idle: Any) -> bool:
    """Whether an idle event waits for the client."""
    return idle.stop_reason.type == "requires_action"
