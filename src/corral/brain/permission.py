"""Which tools an agent has, and whether a call of one may run (contract sections 5 and 6)."""

from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

import msgspec

SANDBOX_TOOLS: Final = ("bash", "read", "write", "edit", "glob", "grep")
"""The built-in tools that the hands run, in the order in which the model is told of them."""

Agent = Mapping[str, Any]
"""The resolved agent snapshot, as the API shows it in ``session.agent``."""


class Evaluation(msgspec.Struct, frozen=True):
    """What a policy says of one call: the two fields of a tool use event."""

    evaluated_permission: Literal["allow", "ask", "deny"]
    evaluation: dict[str, Any] | None

    def fields(self) -> dict[str, Any]:
        """The event's fields; ``evaluation`` is absent where no policy applied (contract section 6)."""
        if self.evaluation is None:
            return {"evaluated_permission": self.evaluated_permission}
        return {"evaluated_permission": self.evaluated_permission, "evaluation": self.evaluation}


_NOT_ENABLED: Final = Evaluation("deny", None)


def enabled_sandbox_tools(agent: Agent) -> list[str]:
    """The built-in tools that the agent may use, in a fixed order."""
    return [name for name in SANDBOX_TOOLS if configuration(agent, name) is not None]


def custom_tools(agent: Agent) -> list[Mapping[str, Any]]:
    """The agent's custom tools, as configured."""
    return [tool for tool in agent["tools"] if tool["type"] == "custom"]


def evaluate(agent: Agent, name: str, web: Collection[str] = ()) -> Evaluation:
    """Judge a call of the built-in tool `name`; a tool that is not enabled is refused.

    `web` are the web tools that the server offers.
    """
    entry = configuration(agent, name)
    if entry is None or (name not in SANDBOX_TOOLS and name not in web):
        return _NOT_ENABLED
    return policy_evaluation(entry)


def policy_evaluation(entry: Mapping[str, Any]) -> Evaluation:
    """What the policy of a tool's configuration says of a call."""
    match entry["permission_policy"]["type"]:
        case "always_allow":
            return Evaluation("allow", {"type": "always_allow"})
        case "always_ask":
            return Evaluation("ask", {"type": "always_ask"})
        case _:
            # `auto` needs a judge; without one the documented outcome is to ask.
            permission = {"type": "ask", "reason_code": "indeterminate"}
            return Evaluation("ask", {"type": "auto", "evaluated_permission": permission})


def configuration(agent: Agent, name: str) -> Mapping[str, Any] | None:
    """The effective configuration of a built-in tool, or None if the agent does not have it enabled."""
    for toolset in agent["tools"]:
        if toolset["type"] != "agent_toolset_20260401":
            continue
        effective: Mapping[str, Any] = toolset["default_config"]
        for override in toolset["configs"]:
            if override["name"] == name:
                effective = override
        return effective if effective["enabled"] else None
    return None
