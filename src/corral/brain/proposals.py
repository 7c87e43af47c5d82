"""The calls that a model's answer proposes: of which tools, and what the agent's own policy says. Pure."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec

from corral.brain.own_tools import PREFIX, SERVER
from corral.brain.permission import Evaluation, custom_tools, evaluate
from corral.brain.voice import Voice
from corral.inference.provider import ModelResponse
from corral.policy.facts import CUSTOM, OWN, tool_name

_ALLOWED: Final = Evaluation("allow", {"type": "always_allow"})

Kind = Literal["built_in", "mcp", "custom", "own"]


class Proposal(msgspec.Struct, frozen=True):
    """One call that the model wants made."""

    block_id: str
    """The model's id of it."""
    kind: Kind
    name: str
    """The tool's own name, which for an MCP tool is not the one that the model uses."""
    input: Mapping[str, Any]
    evaluation: Evaluation
    """What the agent's policy says; custom tools, which clients run themselves, have none and are allowed."""
    server_name: str | None = None
    about: str = ""
    """What the tool says of itself, where it is not Corral's."""

    @property
    def tool(self) -> str:
        """The tool as policy files call it."""
        match self.kind:
            case "custom":
                return tool_name(self.name, kind=CUSTOM)
            case "own":
                return tool_name(self.name, kind=OWN)
            case _:
                return tool_name(self.name, server=self.server_name)


def uses(answer: ModelResponse) -> list[dict[str, Any]]:
    """The tool use blocks of an answer that are to be taken for calls."""
    if answer.stop_reason == "refusal":
        return []
    return [block for block in answer.content if block.get("type") == "tool_use"]


def propose(voice: Voice, block: Mapping[str, Any]) -> Proposal:
    """The call that a tool use block stands for."""
    name: str = block["name"]
    given: Any = block.get("input") or {}
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    made = Proposal(block["id"], "built_in", name, fields, _ALLOWED)
    change = msgspec.structs.replace
    for tool in custom_tools(voice.agent):
        if tool["name"] == name:
            return change(made, kind="custom", about=str(tool.get("description") or ""))
    if _is_own(voice, name):
        return change(made, kind="own", server_name=SERVER)
    if (found := voice.mcp.get(name)) is not None:
        return change(
            made,
            kind="mcp",
            name=found.name,
            evaluation=found.evaluation,
            server_name=found.server_name,
            about=str(found.definition.get("description") or ""),
        )
    return change(made, evaluation=evaluate(voice.agent, name, voice.web))


def _is_own(voice: Voice, name: str) -> bool:
    """Whether Corral itself answers the tool. The prefix is one that no other tool may have."""
    if name in voice.own:
        return True
    return name.startswith(PREFIX) and any(tool["name"] == name for tool in voice.delegation.definitions())
