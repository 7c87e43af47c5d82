"""The dreaming agent: it drops what is said twice, and writes down what users want to be remembered."""

from __future__ import annotations

from typing import Any

from corral.testing.conversation import Conversation
from corral.testing.scripts import converse, dream
from corral.testing.steps import ToolCall


class Store:
    """Plays the loop around the script, on a store and transcripts that are dictionaries."""

    def __init__(self, memories: dict[str, str], sessions: dict[str, str]) -> None:
        self.memories = memories
        self.sessions = sessions
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "Reorganise the memory store."}]

    def run(self) -> str:
        """What the agent says in the end."""
        tools = [{"name": name, "input_schema": {"type": "object"}} for name in sorted(dream.TOOLS)]
        for _ in range(9):
            body = {"model": "m", "max_tokens": 10, "messages": self.messages, "tools": tools}
            step = converse.step(Conversation.of(body), -1)
            if not step.tools:
                return step.text or ""
            self._answer(step.tools)
        raise AssertionError("the agent does not come to an end")

    def _answer(self, calls: list[ToolCall]) -> None:
        uses = [
            {
                "type": "tool_use",
                "id": f"toolu_{len(self.messages)}_{n}",
                "name": call.name,
                "input": call.input,
            }
            for n, call in enumerate(calls)
        ]
        self.messages.append({"role": "assistant", "content": uses})
        results = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": self._do(call.name, call.input)}
            for use, call in zip(uses, calls, strict=True)
        ]
        self.messages.append({"role": "user", "content": results})

    def _do(self, name: str, given: dict[str, Any]) -> str:
        match name:
            case "memory_list":
                return "\n".join(f"{path}, {len(text)} bytes, 2026Z" for path, text in self.memories.items())
            case "session_list":
                return "\n".join(f"{one}: (no title), agent A, made 2026Z, 9 events" for one in self.sessions)
            case "memory_read":
                return self.memories[given["path"]]
            case "session_read":
                return self.sessions[given["session_id"]]
            case "memory_write":
                self.memories[given["path"]] = given["content"]
                return f"Wrote {given['path']}."
            case _:
                del self.memories[given["path"]]
                return f"Deleted {given['path']}."


def test_it_drops_what_is_said_twice_and_keeps_the_first() -> None:
    store = Store({"/a": "one", "/b, c": "two", "/d": "one\n"}, {"sesn_1": "(the end of the transcript)"})
    assert "Deleted /d." in store.run()
    assert store.memories == {"/a": "one", "/b, c": "two"}


def test_it_writes_down_what_users_want_to_be_remembered_once() -> None:
    said = "[1] user: Hello.\n\n[4] user: Remember that Friday is off.\n\n[6] agent: Always."
    store = Store({}, {"sesn_1": said, "sesn_2": said})
    store.run()
    assert store.memories == {dream.LEARNED: "- Remember that Friday is off.\n"}
    store.messages = store.messages[:1]
    assert store.run() == "The store is in order, and the sessions add nothing to it."


def test_it_adds_to_what_it_wrote_before() -> None:
    store = Store({dream.LEARNED: "- Never push.\n"}, {"sesn_1": "[1] user: I prefer tea."})
    store.run()
    assert store.memories == {dream.LEARNED: "- Never push.\n- I prefer tea.\n"}
