"""Agents: stored, versioned configurations (contract section 4).

A version is a row that never changes. The row in `agents` says which one is the latest, and is locked by
whoever makes the next, so that two updates at once become two versions or one conflict, and none is lost.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, LiteralString

import msgspec
from msgspec import UNSET
from psycopg.rows import DictRow

from corral.resources import listing, rosters
from corral.resources.skill_references import pinned
from corral.store.database import Connection, Database
from corral.wire import metadata as meta
from corral.wire import pagination
from corral.wire.agents import (
    Agent,
    AgentConfig,
    CreateAgent,
    ModelConfig,
    UpdateAgent,
    create_config,
    resolve_skills,
    update_config,
)
from corral.wire.errors import Conflict, InvalidRequest, NotFound
from corral.wire.fields import given
from corral.wire.ids import new_id
from corral.wire.multiagent import drafted, full_block, with_own_version
from corral.wire.overrides import AgentRef, AgentWithOverrides, snapshot
from corral.wire.pagination import Listing, Page, check_within
from corral.wire.query import TimeRange
from corral.wire.skills import SkillReference
from corral.wire.times import to_wire

LIST: Final = "agents"
VERSIONS: Final = "agent_versions"

_SELECT: Final = (
    "select a.id, a.archived_at, a.created_at as born_at, a.version as latest,"
    " v.version, v.config::text as config, v.created_at"
    " from agents a join agent_versions v on v.agent_id = a.id"
)


class Agents:
    """The agents in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(self, params: CreateAgent) -> Agent:
        """Store a new agent at version 1.

        Raises:
            InvalidRequest: a rule of contract sections 4 and 5 does not hold, or it names a skill that does
                not exist.
        """
        config = create_config(params, meta.created(params.metadata))
        await pinned(self._database, config.skills, "skills")
        agent_id = new_id("agent")
        if params.multiagent is not None:
            draft = drafted(params.multiagent)
            config.multiagent = await rosters.pinned(draft, config, agent_id, 1, self._database.fetch)
        row = await self._database.fetch_one(
            "with a as (insert into agents (id, version) values (%(id)s, 1) returning id, created_at)"
            " insert into agent_versions (agent_id, version, config)"
            " values (%(id)s, 1, %(config)s::json) returning created_at",
            {"id": agent_id, "config": _text(config)},
        )
        assert row is not None
        return _agent(agent_id, 1, config, row["created_at"], row["created_at"], None)

    async def retrieve(self, agent_id: str, version: int | None = None) -> Agent:
        """An agent at a version, or at its latest.

        Raises:
            NotFound: there is no such agent, or no such version of it.
        """
        row = await self._database.fetch_one(
            _SELECT + " where a.id = %s and v.version = coalesce(%s::int, a.version)", (agent_id, version)
        )
        if row is None:
            if version is not None:
                await self.retrieve(agent_id)
                raise NotFound("Agent version not found.")
            raise NotFound(f"Agent {agent_id} not found.")
        return _shown(row)

    async def update(self, agent_id: str, params: UpdateAgent) -> Agent:
        """Make the next version, or none where nothing changes (contract section 4.3).

        Raises:
            NotFound: there is no such agent.
            InvalidRequest: the agent is archived, the result breaks a rule, or the update names a skill that
                does not exist.
            Conflict: ``params.version`` is not the current one, even where nothing would change.
        """
        # Those that the agent has already may be gone by now: then no session can be made of it.
        await pinned(self._database, resolve_skills(given(params.skills, [])), "skills")
        async with self._database.transaction() as connection:
            row = await _locked(connection, agent_id)
            if row["archived_at"] is not None:
                raise InvalidRequest("Cannot modify archived agent")
            current: int = row["version"]
            if given(params.version, current) != current:
                raise Conflict(
                    "Concurrent modification detected. Please fetch the latest version and retry.",
                    details={"current_version": current},
                )
            stored = _config(row)
            merged = meta.patched(stored.metadata, given(params.metadata, {}))
            config = update_config(stored, params, merged)
            await _update_roster(connection, row, config, params)
            if config == stored:
                return _shown(row)
            config.multiagent = with_own_version(config.multiagent, agent_id, current + 1)
            return await _next_version(connection, row, config)

    async def archive(self, agent_id: str) -> Agent:
        """Make the agent read-only for good, and archive its deployments; an archived one stays as it is.

        Raises:
            NotFound: there is no such agent.
        """
        async with self._database.transaction() as connection:
            await connection.execute(
                "update agents set archived_at = now() where id = %s and archived_at is null", (agent_id,)
            )
            # A second statement: it sees the deployments that were made while the first one waited.
            await connection.execute(
                "update deployments d set archived_at = now(), updated_at = now(), next_run_at = null,"
                " paused_reason = null from agents a where a.id = d.agent_id and a.id = %s"
                " and a.archived_at is not null and d.archived_at is null",
                (agent_id,),
            )
        return await self.retrieve(agent_id)

    async def list(self, page: Page, times: TimeRange, *, include_archived: bool = False) -> Listing:
        """Agents at their latest version, newest first.

        Raises:
            InvalidRequest: ``times`` excludes the position of the cursor.
        """
        check_within(page.after, times)
        moment, last = listing.start(page.after)
        rows = await self._database.fetch(
            "select a.id, a.archived_at, a.created_at as born_at, a.version as latest, v.version,"
            " v.config::text as config, v.created_at as made_at, a.created_at"
            " from agents a join agent_versions v on v.agent_id = a.id and v.version = a.version"
            " where (%(moment)s::timestamptz is null or (a.created_at, a.id) < (%(moment)s, %(last)s))"
            " and (%(archived)s or a.archived_at is null)"
            " and (%(gte)s::timestamptz is null or a.created_at >= %(gte)s)"
            " and (%(lte)s::timestamptz is null or a.created_at <= %(lte)s)"
            " order by a.created_at desc, a.id desc limit %(limit)s",
            {
                "moment": moment,
                "last": last,
                "archived": include_archived,
                "gte": times.gte,
                "lte": times.lte,
                "limit": page.limit + 1,
            },
        )
        kept, next_page = listing.split(rows, page, LIST)
        return Listing(
            data=[_shown(row | {"created_at": row["made_at"]}) for row in kept], next_page=next_page
        )

    async def versions(self, agent_id: str, page: Page) -> Listing:
        """All versions of an agent, newest first.

        Raises:
            NotFound: there is no such agent.
        """
        below = page.after.position[0] if page.after else None
        rows = await self._database.fetch(
            _SELECT + " where a.id = %(id)s and (%(below)s::bigint is null or v.version < %(below)s)"
            " order by v.version desc limit %(limit)s",
            {"id": agent_id, "below": below, "limit": page.limit + 1},
        )
        if not rows:
            await self.retrieve(agent_id)
        kept, more = rows[: page.limit], len(rows) > page.limit
        next_page = None
        if more:
            next_page = pagination.encode(VERSIONS, (kept[-1]["version"],), order=page.order, scope=agent_id)
        return Listing(data=[_shown(row) for row in kept], next_page=next_page)

    async def resolve_for_session(
        self, agent: str | AgentRef | AgentWithOverrides
    ) -> tuple[str, int, dict[str, Any]]:
        """The agent's id, the version that the session is pinned to, and the snapshot that it keeps.

        Raises:
            NotFound: there is no such agent, or no such version of it.
            InvalidRequest: the agent is archived, the overrides break a rule (contract section 8.3), or a
                skill or its version does not exist.
        """
        agent_id = agent if isinstance(agent, str) else agent.id
        wanted = None if isinstance(agent, str) else given(agent.version, None)
        row = await self._database.fetch_one(
            _SELECT + " where a.id = %s and v.version = coalesce(%s::int, a.version)", (agent_id, wanted)
        )
        if row is None:
            try:
                await self.retrieve(agent_id)
            except NotFound:
                raise NotFound(f"agent: {agent_id} not found") from None
            raise NotFound(f"agent.version: {wanted} not found")
        if row["archived_at"] is not None:
            raise InvalidRequest(f"Agent {agent_id} is archived.")
        overrides = agent if isinstance(agent, AgentWithOverrides) else None
        config = _config(row)
        taken = await self._with_skills(snapshot(agent_id, row["version"], config, overrides), "agent")
        if config.multiagent is not None:
            # The roster has to go with the model that the session has.
            config.model = msgspec.convert(taken["model"], ModelConfig)
            own = {field: value for field, value in taken.items() if field != "multiagent"}
            agents: dict[tuple[str, int], Mapping[str, Any]] = {(agent_id, row["version"]): own}
            members = await rosters.members_of(config, agent_id, self._database.fetch)
            for (member_id, version), member in members.items():
                shown = snapshot(member_id, version, member.config)
                del shown["multiagent"]
                agents[member_id, version] = await self._with_skills(shown, f"agent {member_id}")
            taken["multiagent"] = full_block(
                with_own_version(config.multiagent, agent_id, row["version"]) or config.multiagent, agents
            )
        return agent_id, row["version"], taken

    async def _with_skills(self, agent: dict[str, Any], path: str) -> dict[str, Any]:
        """A snapshot with its skills pinned to the versions that are the latest now."""
        listed = msgspec.convert(agent["skills"], list[SkillReference])
        skills = await pinned(self._database, listed, f"{path}.skills")
        return {**agent, "skills": msgspec.to_builtins(skills)}


async def _locked(connection: Connection, agent_id: str) -> DictRow:
    """The latest version's row, with the agent locked until the transaction ends."""
    # Two statements: a row that was waited for must be joined with the version that it then names.
    lock = await connection.execute("select 1 from agents where id = %s for update", (agent_id,))
    if await lock.fetchone() is None:
        raise NotFound(f"Agent {agent_id} not found.")
    cursor = await connection.execute(_SELECT + " where a.id = %s and v.version = a.version", (agent_id,))
    row = await cursor.fetchone()
    assert row is not None
    return row


async def _update_roster(
    connection: Connection, row: DictRow, config: AgentConfig, params: UpdateAgent
) -> None:
    """Put the block that an update sends into the configuration, its references pinned."""

    async def fetch(query: LiteralString, values: dict[str, Any]) -> Sequence[DictRow]:
        return await (await connection.execute(query, values)).fetchall()

    if params.multiagent is None:
        config.multiagent = None
    elif params.multiagent is not UNSET:
        draft = drafted(params.multiagent, config.multiagent)
        config.multiagent = await rosters.pinned(draft, config, row["id"], row["version"], fetch)
    elif params.model is not UNSET and config.multiagent is not None:
        await rosters.check_geography(config, row["id"], fetch)


async def _next_version(connection: Connection, row: DictRow, config: AgentConfig) -> Agent:
    version = row["version"] + 1
    cursor = await connection.execute(
        "with a as (update agents set version = %(version)s, updated_at = now() where id = %(id)s)"
        " insert into agent_versions (agent_id, version, config)"
        " values (%(id)s, %(version)s, %(config)s::json) returning created_at",
        {"id": row["id"], "version": version, "config": _text(config)},
    )
    made = await cursor.fetchone()
    assert made is not None
    return _agent(row["id"], version, config, row["born_at"], made["created_at"], None)


def _text(config: AgentConfig) -> str:
    return msgspec.json.encode(config).decode()


def _config(row: DictRow) -> AgentConfig:
    return msgspec.json.decode(row["config"], type=AgentConfig)


def _shown(row: DictRow) -> Agent:
    return _agent(
        row["id"], row["version"], _config(row), row["born_at"], row["created_at"], row["archived_at"]
    )


def _agent(agent_id: str, version: int, config: AgentConfig, born: Any, made: Any, archived: Any) -> Agent:
    return Agent(
        id=agent_id,
        version=version,
        created_at=to_wire(born),
        updated_at=to_wire(made),
        archived_at=to_wire(archived) if archived is not None else None,
        **{field: getattr(config, field) for field in AgentConfig.__struct_fields__},
    )
