"""An agent that dreams: it reads a memory store and the sessions it is given, drops memories that say what
another says, and writes down what users asked to be remembered. It knows nothing but what the tools tell it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from corral.testing.conversation import Conversation, ToolResult
from corral.testing.steps import Step, ToolCall

TOOLS = frozenset(
    {"memory_list", "memory_read", "memory_write", "memory_delete", "session_list", "session_read"}
)
"""What makes an agent one that dreams."""
LEARNED = "/learned.md"
"""Where it writes what the sessions taught."""
_READ_AT_ONCE = 50
_MEMORY = re.compile(r"^(/.*), \d+ bytes, \S+$", re.MULTILINE)
_SESSION = re.compile(r"^(\w+): .* events$", re.MULTILINE)
_SAID = re.compile(r"^\[\d+\] user: (.+)$", re.MULTILINE)
_LASTING = re.compile(r"\b(remember|always|never|prefer|from now on)\b", re.IGNORECASE)


def is_dreaming(conversation: Conversation) -> bool:
    """Whether the request comes from an agent that dreams."""
    return conversation.tool_names >= TOOLS


def step(conversation: Conversation, turn: int) -> Step:
    """The next step, chosen by what the tools have returned so far."""
    done = conversation.history(turn)
    called = {result.name for result in done}
    if not done:
        return Step(
            text="I will see what there is.",
            tools=[ToolCall("memory_list", {}), ToolCall("session_list", {})],
        )
    if not called & {"memory_read", "session_read"}:
        calls = _reading(done)
        if calls:
            return Step(text="Now I read it.", tools=calls)
    if not called & {"memory_write", "memory_delete"}:
        calls = _changes(done)
        if calls:
            return Step(text="Some of it can be put in order.", tools=calls)
    return Step(text=_summary(done))


def _reading(done: Sequence[ToolResult]) -> list[ToolCall]:
    listed = "\n".join(result.text for result in done if result.name == "memory_list")
    sessions = "\n".join(result.text for result in done if result.name == "session_list")
    calls = [ToolCall("memory_read", {"path": path}) for path in _MEMORY.findall(listed)]
    calls += [ToolCall("session_read", {"session_id": name}) for name in _SESSION.findall(sessions)]
    return calls[:_READ_AT_ONCE]


def _changes(done: Sequence[ToolResult]) -> list[ToolCall]:
    memories = {
        str(result.input["path"]): result.text
        for result in done
        if result.name == "memory_read" and not result.is_error
    }
    known = memories.get(LEARNED, "")
    said = [
        line.strip()
        for result in done
        if result.name == "session_read"
        for line in _SAID.findall(result.text)
        if _LASTING.search(line)
    ]
    new = [f"- {line}" for line in dict.fromkeys(said) if line not in known]
    calls: list[ToolCall] = []
    if new:
        content = "\n".join([*([known.rstrip()] if known else []), *new]) + "\n"
        calls.append(ToolCall("memory_write", {"path": LEARNED, "content": content}))
    first: dict[str, str] = {}
    for path, text in sorted(memories.items()):
        if first.setdefault(text.strip(), path) != path:
            calls.append(ToolCall("memory_delete", {"path": path}))
    return calls


def _summary(done: Sequence[ToolResult]) -> str:
    changes = [result.text for result in done if result.name in ("memory_write", "memory_delete")]
    if not changes:
        return "The store is in order, and the sessions add nothing to it."
    return "\n".join(["What I changed:", *(f"- {change}" for change in changes)])
