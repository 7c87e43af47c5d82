"""How threads deal with each other: the tools of a coordinator and of those who work for it. Pure.

These calls have no events of their own kind (contract section 11.3): what the log shows is what they do,
``session.thread_created`` and ``agent.thread_message_*``. The model's call and its answer are kept in the
private part of the request's end.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from corral.brain.own_tools import PREFIX
from corral.brain.permission import Agent
from corral.session.events import NewEvent, new_event
from corral.session.state import SessionState
from corral.session.thread_state import ThreadState
from corral.wire.ids import new_id

LIVE_THREADS: Final = 25
"""How many children a session may have at a time; those that have ended do not count."""
LIST: Final = f"{PREFIX}list_agents"
CREATE: Final = f"{PREFIX}create_agent"
SEND: Final = f"{PREFIX}send_to_agent"
REPORT: Final = f"{PREFIX}send_to_coordinator"
_NAME_CHARACTERS: Final = 256
_RESERVED: Final = "anthropic."
_INSTRUCTIONS: Final = 100_000

_COORDINATOR_NOTE: Final = (
    f"You can have other agents work for you, side by side. {CREATE} starts one on a task, in a thread of "
    "its own. It sees nothing of this conversation, so give it all that it needs to know; it works in the "
    "same sandbox on the same files. What it says at the end comes to you as a message; do not wait or ask "
    "for it. When you have nothing to do until then, end your turn: the message starts you again. "
    f"With {SEND} you go on with an agent, which remembers its work; {LIST} shows which agents there are."
)
_CHILD_NOTE: Final = (
    "You work for a coordinator, another agent, which gives you tasks and cannot see what you do. The last "
    "message of your turn is handed to it as your report, so put into it all that it needs, and do not send "
    f"that twice. Use {REPORT} only for what must reach it before you are done. You share the sandbox and "
    "its files with it and with the other agents that work for it."
)


class Delegated(msgspec.Struct, frozen=True):
    """What a call comes to: the events that it writes, and what the model is answered."""

    text: str
    events: Sequence[NewEvent] = ()
    is_error: bool = False


class Delegation(msgspec.Struct, frozen=True):
    """What a thread may do with others."""

    thread_id: str = ""
    agent: Agent = {}
    """The thread's agent; of a coordinator, with its `multiagent`."""
    roster: Mapping[str, Agent] = {}
    """The agents that it may start, by the names that the model calls them by."""
    inline: bool = False
    """Whether it may define agents itself."""
    parent: str | None = None
    """The thread that it works for."""

    @property
    def coordinates(self) -> bool:
        """Whether it may start agents at all."""
        return self.inline or bool(self.roster)

    def note(self) -> str:
        """What the system prompt says of it; empty for a thread that is alone."""
        if self.parent is not None:
            return _CHILD_NOTE
        return _COORDINATOR_NOTE if self.coordinates else ""

    def definitions(self) -> list[dict[str, Any]]:
        """The tools as the model is told of them; none for a thread that is alone."""
        if self.parent is not None:
            return [_tool(REPORT, "Send a message to the coordinator that you work for.", message=_MESSAGE)]
        if not self.coordinates:
            return []
        return [
            _tool(LIST, "List the agents that you can start, and those that you have started."),
            self._create(),
            _tool(
                SEND,
                "Send a message to an agent that you have started; it goes on with its work, or begins anew.",
                thread_id=_text("The agent's thread, as it was named when the agent was started."),
                message=_MESSAGE,
            ),
        ]

    def answer(self, name: str, given: Mapping[str, Any], state: SessionState) -> Delegated | None:
        """What a call comes to; None if this is no tool of the thread's."""
        if name not in (tool["name"] for tool in self.definitions()):
            return None
        match name:
            case "ant__list_agents":
                return Delegated(self._listed(state))
            case "ant__create_agent":
                return self._started(given, state)
            case "ant__send_to_agent":
                return self._sent(given, state)
            case _:
                return self._reported(given)

    def _create(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        if self.roster:
            about = "Which agent to start"
            about += "; leave it out to define one of your own." if self.inline else "."
            properties["agent"] = {"type": "string", "enum": [*self.roster], "description": about}
        if self.inline:
            properties["name"] = _text("A short name for an agent that you define.")
            properties["instructions"] = _text(
                "Who the agent is that you define, and how it is to work: its system prompt. It has your "
                "model and your tools."
            )
        properties["task"] = _text("What it is to do, with all that it needs to know.")
        required = ["task"] if self.inline else ["agent", "task"]
        return _tool(CREATE, "Start an agent on a task.", required, **properties)

    def _listed(self, state: SessionState) -> str:
        lines = [f"- {name}: {_one_line(agent)}" for name, agent in self.roster.items()]
        lines = ["Agents that you can start:", *lines] if lines else []
        if self.inline:
            lines.append(f"You can define agents of your own: give {CREATE} a name and instructions.")
        children = [one for one in state.threads.values() if one.parent == self.thread_id]
        lines.append("Agents that you have started:" if children else "You have started no agent yet.")
        return "\n".join([*lines, *(f"- {one.id}: {one.name}, {_standing(one)}" for one in children)])

    def _started(self, given: Mapping[str, Any], state: SessionState) -> Delegated:
        task = _words(given, "task")
        if task is None:
            return _wrong("task: must say what the agent is to do")
        agent = self._chosen(given)
        if isinstance(agent, str):
            return _wrong(agent)
        live = [one for one in state.threads.values() if one.parent is not None and one.live]
        if len(live) >= LIVE_THREADS:
            return _wrong(
                f"There are {LIVE_THREADS} agents already, which is the most at a time. Go on with one of "
                f"them by {SEND}."
            )
        thread_id = new_id("sthr")
        created = new_event(
            "session.thread_created",
            self.thread_id,
            session_thread_id=thread_id,
            agent_name=agent["name"],
            workflow_run_id=None,
            private={"agent": agent},
        )
        text = (
            f"{agent['name']} has started, as thread {thread_id}. Its report will come to you as a message."
        )
        return Delegated(text, (created, *message(self.thread_id, thread_id, task, to_name=agent["name"])))

    def _chosen(self, given: Mapping[str, Any]) -> dict[str, Any] | str:
        """The agent that a call names or defines; a text if it does neither as it must."""
        wanted = given.get("agent")
        if wanted is not None:
            agent = self.roster.get(wanted) if isinstance(wanted, str) else None
            return dict(agent) if agent is not None else f"agent: must be one of {', '.join(self.roster)}"
        if not self.inline:
            return f"agent: must be one of {', '.join(self.roster)}"
        name, instructions = _words(given, "name"), _words(given, "instructions")
        if name is None or instructions is None:
            return "agent, or name and instructions: must say which agent to start"
        if len(name) > _NAME_CHARACTERS or name.startswith(_RESERVED) or not name.isprintable():
            return f"name: must be up to {_NAME_CHARACTERS} printable characters, not begin with {_RESERVED}"
        if len(instructions) > _INSTRUCTIONS:
            return f"instructions: must be at most {_INSTRUCTIONS} characters"
        own = {field: value for field, value in self.agent.items() if field not in _NOT_INLINE}
        return {**own, "type": "inline", "name": name, "description": None, "system": instructions}

    def _sent(self, given: Mapping[str, Any], state: SessionState) -> Delegated:
        text, to = _words(given, "message"), given.get("thread_id")
        if text is None:
            return _wrong("message: must hold a text")
        thread = state.threads.get(to) if isinstance(to, str) else None
        if thread is None or thread.parent != self.thread_id:
            return _wrong(f"thread_id: no agent that you have started has this thread; {LIST} shows them")
        if not thread.live:
            return _wrong(f"thread_id: {thread.name} has ended for good; start another agent")
        return Delegated(
            f"The message has reached {thread.name}.",
            message(self.thread_id, thread.id, text, to_name=thread.name),
        )

    def _reported(self, given: Mapping[str, Any]) -> Delegated:
        text = _words(given, "message")
        if text is None or self.parent is None:
            return _wrong("message: must hold a text")
        sent = message(self.thread_id, self.parent, text, from_name=str(self.agent["name"]))
        return Delegated("The message has reached the coordinator.", sent)


ALONE: Final = Delegation()
"""That of a thread that has no others to deal with."""
_NOT_INLINE: Final = ("id", "version", "multiagent")


def delegation_of(thread: ThreadState, agent: Agent) -> Delegation:
    """What a thread may do with others. `agent` is its own; of the primary thread, the session's."""
    if thread.parent is not None:
        return Delegation(thread.id, agent, parent=thread.parent)
    block: Mapping[str, Any] = agent.get("multiagent") or {}
    if block.get("type") == "coordinator":
        listed, inline = block["agents"], False
    else:
        subagents: Mapping[str, Any] = block.get("subagents") or {"type": "disabled"}
        if subagents["type"] == "disabled":
            return ALONE
        listed, inline = subagents["predefined_agents"], subagents["inline_agents"]["type"] == "enabled"
    own = {field: value for field, value in agent.items() if field != "multiagent"}
    # A copy of its own is as it is now, with the changes that are the session's.
    members = [own if one["id"] == agent["id"] else one for one in listed if one["type"] == "agent"]
    names = [str(one["name"]) for one in members]
    roster = {
        name if names.count(name) == 1 else f"{name} ({one['id']})": cast("Agent", one)
        for name, one in zip(names, members, strict=True)
    }
    return Delegation(thread.id, agent, roster, inline)


def message(
    sender: str, to: str, text: str, *, to_name: str | None = None, from_name: str | None = None
) -> list[NewEvent]:
    """A message as both threads have it; who is the primary has no name."""
    content = [{"type": "text", "text": text}]
    receiver: dict[str, Any] = {} if to_name is None else {"to_agent_name": to_name}
    origin: dict[str, Any] = {} if from_name is None else {"from_agent_name": from_name}
    return [
        new_event("agent.thread_message_sent", sender, to_session_thread_id=to, **receiver, content=content),
        new_event(
            "agent.thread_message_received", to, from_session_thread_id=sender, **origin, content=content
        ),
    ]


def _tool(
    name: str, description: str, required: list[str] | None = None, /, **properties: Any
) -> dict[str, Any]:
    needed = [*properties] if required is None else required
    schema = {"type": "object", "properties": properties, "required": needed}
    return {"name": name, "description": description, "input_schema": schema}


def _text(description: str) -> dict[str, str]:
    return {"type": "string", "description": description}


_MESSAGE: Final = _text("The message.")


def _words(given: Mapping[str, Any], field: str) -> str | None:
    value = given.get(field)
    return value if isinstance(value, str) and value.strip() else None


def _wrong(text: str) -> Delegated:
    return Delegated(text, is_error=True)


def _one_line(agent: Agent) -> str:
    return " ".join(str(agent["description"] or "no description").split())


def _standing(thread: ThreadState) -> str:
    if thread.status == "idle" and thread.calls:
        return "waits for the user"
    return {"rescheduling": "running", "terminated": "ended for good"}.get(thread.status, thread.status)
