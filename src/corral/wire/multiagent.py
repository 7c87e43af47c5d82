"""The `multiagent` block of an agent on the wire: what may be sent, and what is stored and shown of it.

(contract section 11.1) Whether the agents exist that it names is looked up in `corral.resources.rosters`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from corral.wire.errors import InvalidRequest
from corral.wire.fields import Id, PositiveInt, Request

ROSTER: Final = 20
"""Most agents in one list."""
ADVISOR: Final = "anthropic.advisor"
"""The name that an advisor has in a roster."""
AdvisorModel = Annotated[str, Meta(min_length=1, max_length=256)]


class RosterAgent(Request, tag="agent"):
    """An agent at a version, or at its latest."""

    id: Id
    version: PositiveInt | UnsetType = UNSET


class RosterSelf(Request, tag="self"):
    """The agent that has the block."""


class RosterAdvisor(Request, tag="advisor"):
    """A model that the session's primary thread may consult."""

    model: AdvisorModel


RosterParam = Id | RosterAgent | RosterSelf
CoordinatorParam = Id | RosterAgent | RosterSelf | RosterAdvisor


class CoordinatorParams(Request, tag="coordinator"):
    """A roster; it replaces what was there."""

    agents: list[CoordinatorParam]


class SwitchedOn(Request, tag="enabled"):
    """It may be done."""


class SwitchedOff(Request, tag="disabled"):
    """It may not be done."""


InlineAgents = SwitchedOn | SwitchedOff


class MembersParams(Request, tag="enabled"):
    """Which agents may be used: saved ones, and those that the agent defines itself."""

    inline_agents: InlineAgents | UnsetType | None = UNSET
    predefined_agents: list[RosterParam] | UnsetType | None = UNSET


class AdvisorOn(Request, tag="enabled"):
    """The session's primary thread may consult a model."""

    model: AdvisorModel


class Multiagent20261001Params(Request, tag="multiagent_20261001"):
    """The three members; onto a stored block of this type it is merged, level by level."""

    subagents: MembersParams | SwitchedOff | UnsetType | None = UNSET
    workflows: MembersParams | SwitchedOff | UnsetType | None = UNSET
    advisor: AdvisorOn | SwitchedOff | UnsetType | None = UNSET


MultiagentParams = CoordinatorParams | Multiagent20261001Params


class AgentReference(msgspec.Struct, tag="agent", kw_only=True):
    """An agent at a version."""

    id: str
    version: int


class Advisor(msgspec.Struct, tag="advisor", kw_only=True):
    """A model that the session's primary thread may consult."""

    model: str


class Coordinator(msgspec.Struct, tag="coordinator", kw_only=True):
    """A roster, each agent at a version; the advisor stands last."""

    agents: list[AgentReference | Advisor]


class Members(msgspec.Struct, tag="enabled", kw_only=True):
    """Which agents may be used."""

    inline_agents: InlineAgents
    predefined_agents: list[AgentReference]


class Multiagent20261001(msgspec.Struct, tag="multiagent_20261001", kw_only=True):
    """The three members, every default filled in."""

    subagents: Members | SwitchedOff
    workflows: Members | SwitchedOff
    advisor: AdvisorOn | SwitchedOff


Multiagent = Coordinator | Multiagent20261001
MemberName = Literal["subagents", "workflows"]
_MEMBERS: Final[tuple[MemberName, MemberName]] = ("subagents", "workflows")

Reference = RosterParam | AgentReference
"""A reference that is sent, or one that is stored already."""


class Draft(msgspec.Struct):
    """A block whose references are still to be looked up; `lists` has them by their path."""

    block: Multiagent
    lists: dict[str, Sequence[Reference]]
    advised: bool
    """Whether it has an advisor, whose name no member may have."""

    def put(self, path: str, found: Sequence[AgentReference]) -> None:
        """Put the references of a list in its place."""
        match self.block:
            case Coordinator():
                self.block.agents[:0] = found
            case Multiagent20261001():
                name = path.split(".")[1]
                members = self.block.subagents if name == "subagents" else self.block.workflows
                assert isinstance(members, Members)
                members.predefined_agents = list(found)


def drafted(params: MultiagentParams, stored: Multiagent | None = None) -> Draft:
    """The block that is sent, merged into the stored one where that is of the same type.

    Raises:
        InvalidRequest: with the path of the field at fault.
    """
    match params:
        case CoordinatorParams():
            return _coordinator(params)
        case Multiagent20261001Params():
            return _members(params, stored if isinstance(stored, Multiagent20261001) else None)


def _coordinator(params: CoordinatorParams) -> Draft:
    path = "multiagent.agents"
    if not 1 <= len(params.agents) <= ROSTER:
        raise InvalidRequest(f"{path}: must hold 1 to {ROSTER} entries")
    advisors = [(at, entry) for at, entry in enumerate(params.agents) if isinstance(entry, RosterAdvisor)]
    if len(advisors) > 1:
        raise InvalidRequest(f"{path}[{advisors[1][0]}]: at most one entry of type advisor")
    references: list[Reference] = [entry for entry in params.agents if not isinstance(entry, RosterAdvisor)]
    _check_selves(references, path)
    block = Coordinator(agents=[Advisor(model=entry.model) for _, entry in advisors])
    return Draft(block, {path: references}, advised=bool(advisors))


def _members(params: Multiagent20261001Params, stored: Multiagent20261001 | None) -> Draft:
    lists: dict[str, Sequence[Reference]] = {}
    made: dict[str, Members | SwitchedOff] = {}
    for name in _MEMBERS:
        sent: MembersParams | SwitchedOff | UnsetType | None = getattr(params, name)
        before: Members | SwitchedOff | None = None if stored is None else getattr(stored, name)
        if sent is UNSET and before is not None:
            if isinstance(before, Members):
                lists[f"multiagent.{name}.predefined_agents"] = before.predefined_agents
            made[name] = before if isinstance(before, SwitchedOff) else _copy(before)
        elif isinstance(sent, SwitchedOff):
            made[name] = sent
        else:
            asked = sent if isinstance(sent, MembersParams) else MembersParams()
            kept = before if isinstance(before, Members) and isinstance(sent, MembersParams) else None
            path = f"multiagent.{name}.predefined_agents"
            made[name], lists[path] = _one(asked, kept, path)
    advisor = params.advisor
    if advisor is UNSET and stored is not None:
        advisor = stored.advisor
    chosen = advisor if isinstance(advisor, AdvisorOn | SwitchedOff) else SwitchedOff()
    block = Multiagent20261001(subagents=made["subagents"], workflows=made["workflows"], advisor=chosen)
    return Draft(block, lists, advised=isinstance(chosen, AdvisorOn))


def _copy(members: Members) -> Members:
    return Members(inline_agents=members.inline_agents, predefined_agents=[])


def _one(asked: MembersParams, kept: Members | None, path: str) -> tuple[Members, Sequence[Reference]]:
    inline = asked.inline_agents
    if inline is UNSET and kept is not None:
        inline = kept.inline_agents
    listed: Sequence[Reference]
    if asked.predefined_agents is UNSET:
        listed = kept.predefined_agents if kept is not None else []
    else:
        listed = asked.predefined_agents or []
    if len(listed) > ROSTER:
        raise InvalidRequest(f"{path}: at most {ROSTER} agents")
    _check_selves(listed, path)
    chosen = inline if isinstance(inline, SwitchedOn | SwitchedOff) else SwitchedOn()
    if isinstance(chosen, SwitchedOff) and not listed:
        raise InvalidRequest(f"{path}: must name at least one agent while inline_agents is disabled")
    return Members(inline_agents=chosen, predefined_agents=[]), listed


def _check_selves(references: Sequence[Reference], path: str) -> None:
    selves = [at for at, entry in enumerate(references) if isinstance(entry, RosterSelf)]
    if len(selves) > 1:
        raise InvalidRequest(f"{path}[{selves[1]}]: at most one entry of type self")


def references_of(block: Multiagent | None) -> Iterator[tuple[str, list[AgentReference]]]:
    """The lists of agents in a block, each with its path."""
    match block:
        case Coordinator():
            agents = [entry for entry in block.agents if isinstance(entry, AgentReference)]
            yield "multiagent.agents", agents
        case Multiagent20261001():
            for name in _MEMBERS:
                members: Members | SwitchedOff = getattr(block, name)
                if isinstance(members, Members):
                    yield f"multiagent.{name}.predefined_agents", members.predefined_agents
        case None:
            pass


def with_own_version(block: Multiagent | None, agent_id: str, version: int) -> Multiagent | None:
    """The block with the agent's reference to itself at a version of it."""
    if block is None:
        return None
    own = msgspec.convert(msgspec.to_builtins(block), Multiagent)
    for _, references in references_of(own):
        for reference in references:
            if reference.id == agent_id:
                reference.version = version
    return own


def full_block(block: Multiagent, agents: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Any]:
    """The block as a session keeps it: with the agents themselves in place of the references."""

    def full(entry: Mapping[str, Any]) -> Mapping[str, Any]:
        return agents[entry["id"], entry["version"]] if entry["type"] == "agent" else entry

    shown: dict[str, Any] = msgspec.to_builtins(block)
    if isinstance(block, Coordinator):
        return {**shown, "agents": [full(entry) for entry in shown["agents"]]}
    for name in _MEMBERS:
        if shown[name]["type"] == "enabled":
            members = [full(entry) for entry in shown[name]["predefined_agents"]]
            shown[name] = {**shown[name], "predefined_agents": members}
    return shown


def member_agents(agent: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The agents that a session's agent may set to work, in full; not itself."""
    block: Mapping[str, Any] = agent.get("multiagent") or {}
    listed: list[Mapping[str, Any]] = [*block.get("agents", ())]
    for name in _MEMBERS:
        members: Mapping[str, Any] = block.get(name) or {}
        listed += members.get("predefined_agents", ())
    return [one for one in listed if one["type"] == "agent"]


def advisor_model(agent: Mapping[str, Any]) -> str | None:
    """The model that a session's agent may consult, if it may."""
    block: Mapping[str, Any] = agent.get("multiagent") or {}
    chosen: list[Mapping[str, Any]] = [one for one in block.get("agents", ()) if one["type"] == "advisor"]
    advisor: Mapping[str, Any] = block.get("advisor") or {}
    if advisor.get("type") == "enabled":
        chosen.append(advisor)
    return chosen[0]["model"] if chosen else None
