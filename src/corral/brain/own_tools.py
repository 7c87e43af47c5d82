"""Tools that the brain answers itself, from what its claim and the log hold: no hands, no waiting.

The call and its result enter the log together, in the commit that takes up the model's answer, so nobody
ever finds such a call open. It is written as a call of an MCP tool, the kind that no worker takes for its
own: the official ones hold an `agent.tool_use` for open until a client has answered it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

SERVER: Final = "corral"
"""What the events name as the MCP server."""
PREFIX: Final = "ant__"
"""What the names begin with; no custom tool may be called so (contract section 5)."""


class OwnAnswer(msgspec.Struct, frozen=True):
    """What a call brings."""

    text: str
    is_error: bool = False


OwnAnswers = Mapping[str, OwnAnswer]
"""Answers by the ids of the model's calls."""
NO_ANSWERS: Final[OwnAnswers] = {}


class OwnTool(msgspec.Struct, frozen=True):
    """A tool of the brain's: its definition for the model, and the answer to an input. The answer is pure.

    What has to be read first is read by whoever takes up the model's answer (`corral.brain.history`).
    """

    definition: Mapping[str, Any]
    answer: Callable[[Mapping[str, Any]], OwnAnswer]


OwnTools = Mapping[str, OwnTool]
"""Tools by name."""
NONE: Final[OwnTools] = {}


def own_tool(
    name: str, description: str, answer: Callable[[Mapping[str, Any]], OwnAnswer], **properties: str
) -> OwnTool:
    """A tool whose input is texts, all required; `properties` are their descriptions."""
    schema = {
        "type": "object",
        "properties": {
            field: {"type": "string", "description": about} for field, about in properties.items()
        },
        "required": list(properties),
    }
    return OwnTool({"name": name, "description": description, "input_schema": schema}, answer)
