"""The agents that an agent's `multiagent` block names: looked up and pinned when it is saved (section 11.1).

A reference is to a version that never changes. What a session may set to work, it keeps in full.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, LiteralString

import msgspec
from msgspec import UNSET

from corral.wire.agents import AgentConfig
from corral.wire.errors import InvalidRequest
from corral.wire.multiagent import (
    ADVISOR,
    AgentReference,
    Draft,
    Multiagent,
    Reference,
    RosterAgent,
    RosterSelf,
    references_of,
)

Fetch = Callable[[LiteralString, dict[str, Any]], Awaitable[Sequence[Mapping[str, Any]]]]
"""Runs a query, in the transaction that saves the agent where there is one."""

_FOUND: Final[LiteralString] = (
    "select w.id, a.archived_at is not null as archived, v.version, v.config::text as config"
    " from unnest(%(ids)s::text[], %(versions)s::int[]) with ordinality as w (id, version, position)"
    " left join agents a on a.id = w.id"
    " left join agent_versions v on v.agent_id = a.id and v.version = coalesce(w.version, a.version)"
    " order by w.position"
)


class Member(msgspec.Struct, frozen=True):
    """An agent that a reference names."""

    id: str
    version: int
    config: AgentConfig
    archived: bool


async def pinned(draft: Draft, config: AgentConfig, agent_id: str, version: int, fetch: Fetch) -> Multiagent:
    """The block with its references pinned; `agent_id` and `version` are those of the agent that has it.

    Raises:
        InvalidRequest: an agent does not exist, is archived, stands there twice, has a block of its own, or
            is pinned to another geography; the message names the field.
    """
    for path, references in draft.lists.items():
        found = await _found(references, path, agent_id, fetch)
        seen: dict[str, str] = {}
        listed: list[AgentReference] = []
        for (where, wanted, _), member in zip(_asked(references, path, agent_id), found, strict=True):
            if (first := seen.setdefault(wanted, where)) != where:
                raise InvalidRequest(f"{where}: agent {wanted} stands there already, as {first}")
            if member is not None:
                _check(member, where, config, advised=draft.advised)
            listed.append(AgentReference(id=wanted, version=version if member is None else member.version))
        draft.put(path, listed)
    return draft.block


async def check_geography(config: AgentConfig, agent_id: str, fetch: Fetch) -> None:
    """Check a stored block against a model that has been changed.

    Raises:
        InvalidRequest: its members are pinned to another geography.
    """
    for path, references in references_of(config.multiagent):
        for at, member in enumerate(await _found(references, path, agent_id, fetch)):
            if member is not None:
                _check_geography(member, f"{path}[{at}]", config)


async def members_of(config: AgentConfig, agent_id: str, fetch: Fetch) -> dict[tuple[str, int], Member]:
    """The agents of a block, for a session that is being made; not the agent itself.

    Raises:
        InvalidRequest: one of them is archived.
    """
    members: dict[tuple[str, int], Member] = {}
    for path, references in references_of(config.multiagent):
        for at, member in enumerate(await _found(references, path, agent_id, fetch)):
            if member is not None:
                if member.archived:
                    raise InvalidRequest(f"agent.{path}[{at}]: agent {member.id} is archived")
                _check_geography(member, f"agent.{path}[{at}]", config)
                members[member.id, member.version] = member
    return members


def _asked(references: Sequence[Reference], path: str, agent_id: str) -> list[tuple[str, str, int | None]]:
    """Where each reference stands, which agent it names, and at which version."""
    asked: list[tuple[str, str, int | None]] = []
    for at, reference in enumerate(references):
        where = f"{path}[{at}]"
        match reference:
            case RosterSelf():
                asked.append((where, agent_id, None))
            case RosterAgent() | AgentReference():
                version = None if reference.version is UNSET else reference.version
                asked.append((where, reference.id, version))
            case _:
                asked.append((where, reference, None))
    return asked


async def _found(
    references: Sequence[Reference], path: str, agent_id: str, fetch: Fetch
) -> list[Member | None]:
    """The agents that are named; None for the agent itself."""
    asked = _asked(references, path, agent_id)
    if not asked:
        return []
    rows = await fetch(
        _FOUND, {"ids": [wanted for _, wanted, _ in asked], "versions": [version for *_, version in asked]}
    )
    found: list[Member | None] = []
    for (where, wanted, version), row in zip(asked, rows, strict=True):
        if wanted == agent_id:
            found.append(None)
            continue
        if row["version"] is None:
            at = "" if version is None or row["archived"] is None else f" at version {version}"
            raise InvalidRequest(f"{where}: agent {wanted} not found{at}")
        config = msgspec.json.decode(row["config"], type=AgentConfig)
        found.append(Member(wanted, row["version"], config, row["archived"]))
    return found


def _check(member: Member, where: str, config: AgentConfig, *, advised: bool) -> None:
    if member.archived:
        raise InvalidRequest(f"{where}: agent {member.id} is archived")
    if member.config.multiagent is not None:
        raise InvalidRequest(
            f"{where}: agent {member.id} has a multiagent block of its own; agents can be set to work one "
            "level deep"
        )
    if advised and member.config.name == ADVISOR:
        raise InvalidRequest(f"{where}: the name {ADVISOR} is that of the advisor")
    _check_geography(member, where, config)


def _check_geography(member: Member, where: str, config: AgentConfig) -> None:
    if member.config.model.inference_geo != config.model.inference_geo:
        raise InvalidRequest(
            f"{where}: model.inference_geo of agent {member.id} must be the same as that of the agent that "
            "sets it to work"
        )
