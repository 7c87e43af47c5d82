"""The agent that dreams: its prompt (dream_prompt.md), its tools, and what it is told at the start.

It is the server's own and stands in no list of agents; a dream's session keeps a snapshot of it like any
session of its agent. Whoever changes the prompt or the tools raises `VERSION`, which that snapshot shows.
"""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from corral.wire.agents import CreateAgent, ModelParams, create_config
from corral.wire.overrides import snapshot
from corral.wire.tools import CustomTool

AGENT_ID: Final = "agent_corral_dreamer"
VERSION: Final = 1


@cache
def _prompt() -> str:
    return files("corral.resources").joinpath("dream_prompt.md").read_text("utf-8")


def _tool(name: str, description: str, required: Sequence[str], **properties: dict[str, Any]) -> CustomTool:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return CustomTool(name=name, description=description, input_schema=schema)


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": description}


_PATH: Final = _text("Path of the memory, such as /preferences/code-style.md.")

TOOLS: Final = (
    _tool(
        "memory_list",
        "List the memories below a folder in the order of their paths: path, size in bytes, and when it was "
        "last changed. A long list comes in parts; its last line then says how to go on.",
        [],
        folder=_text("The folder, with a / at its end; / when absent, which is everything."),
        after=_text("Go on behind this path."),
    ),
    _tool("memory_read", "Read a memory.", ["path"], path=_PATH),
    _tool(
        "memory_write",
        "Write a memory: make a new one, or replace the whole text of one that you have read.",
        ["path", "content"],
        path=_PATH,
        content=_text("The whole text."),
    ),
    _tool(
        "memory_move",
        "Give a memory that you have read another path, where there is none yet.",
        ["path", "new_path"],
        path=_PATH,
        new_path=_text("The path that it gets."),
    ),
    _tool("memory_delete", "Delete a memory that you have read.", ["path"], path=_PATH),
    _tool(
        "session_list",
        "List the sessions that you are given: id, title, agent, when made, and how many events they have.",
        [],
    ),
    _tool(
        "session_read",
        "Read a part of a session's transcript. Each entry begins with its number in brackets. Long entries "
        "are shortened; ask for one by its number to see it whole.",
        ["session_id"],
        session_id=_text("The session."),
        after=_number("Go on behind the entry with this number."),
        event=_number("Only the entry with this number, whole."),
    ),
)
"""The tools of the agent; `corral.resources.dream_tools` carries them out."""


def agent_for(model_id: str) -> dict[str, Any]:
    """The snapshot of the agent that a dream's session keeps."""
    params = CreateAgent(
        name="Dreamer",
        description="Reorganises a memory store in the light of past sessions.",
        model=ModelParams(id=model_id),
        system=_prompt(),
        tools=[*TOOLS],
    )
    return snapshot(AGENT_ID, VERSION, create_config(params, {}))


class Material(msgspec.Struct, frozen=True):
    """What a dream is about, as its first message says."""

    store_name: str
    store_description: str
    memories: int
    sessions: int
    updates_input: bool
    reading: int
    instructions: str | None


def first_message(material: Material) -> str:
    """What the agent is told to do.

    The instructions come last, from whoever asked for the dream: they are the only ones besides the prompt.
    """
    description = f" It is described as: {material.store_description}" if material.store_description else ""
    place = (
        "You work on the store itself, which sessions may be using at this moment."
        if material.updates_input
        else "You work on a copy; the original stays as it is."
    )
    held, given = _count(material.memories, "memory"), _count(material.sessions, "session")
    text = f"Reorganise the memory store {material.store_name!r}.{description} It has {held}. {place}"
    text += (
        f" You have the transcripts of {given} to learn from. What you read of all this may come to about"
        f" {material.reading:,} characters together, so divide it up."
    )
    if material.instructions is None:
        return text
    return f"{text}\n\nWhoever asked for this added:\n{material.instructions}"


def _count(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{number} {noun}s"
