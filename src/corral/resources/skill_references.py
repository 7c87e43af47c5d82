"""Who refers to skills: agents, whose references are checked when they are saved, and sessions, which pin.

An agent keeps ``latest`` as it is. A session gets the version that is the latest when it is made, and keeps
what that said of itself, so that its prompt stays the same whatever becomes of the skill.
"""

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from psycopg.rows import DictRow

from corral.resources.skills import not_found
from corral.session.records import Attach
from corral.store.database import Connection, Database
from corral.wire.errors import InvalidRequest
from corral.wire.multiagent import member_agents
from corral.wire.skills import LATEST, SkillReference, references

# In the order in which they were asked for. Only a reference of type `anthropic` may go by the name.
_FOUND: Final[LiteralString] = (
    "select s.name, v.id as version_id"
    " from unnest(%(skills)s::text[], %(versions)s::text[], %(named)s::bool[])"
    " with ordinality as w (skill, version, named, position)"
    " left join lateral (select id, name from skills where id = w.skill or (w.named and name = w.skill)"
    " order by id = w.skill desc, created_at desc, id desc limit 1) s on true"
    " left join lateral (select id from skill_versions where skill_id = s.id"
    " and (id = w.version or w.version = 'latest') order by position desc limit 1) v on true"
    " order by w.position"
)
_REACHED: Final[LiteralString] = (
    "select 1 from session_skills k join sessions s on s.id = k.session_id"
    " join environments e on e.id = s.environment_id"
    " left join skills n on n.id = k.skill_id"
    " where %(skill)s in (k.skill_id, n.name)"
    " and (%(session)s::text is null or s.id = %(session)s)"
    " and (%(environment)s::text is null or s.environment_id = %(environment)s)"
    " and (not %(pool)s or e.config ->> 'type' = 'cloud') limit 1"
)


async def pinned(database: Database, listed: Sequence[SkillReference], path: str) -> list[SkillReference]:
    """The references with the version that each stands for at this moment.

    Raises:
        InvalidRequest: a skill or a version does not exist (``skill_not_found``), a skill stands there twice,
            or two skills have one name; the message names the field.
    """
    checked = list(references(listed, path))
    if not checked:
        return []
    rows = await database.fetch(
        _FOUND,
        {
            "skills": [reference.skill_id for _, reference in checked],
            "versions": [reference.version for _, reference in checked],
            "named": [reference.type == "anthropic" for _, reference in checked],
        },
    )
    fixed: list[SkillReference] = []
    names: dict[str, str] = {}
    for (where, reference), row in zip(checked, rows, strict=True):
        if row["name"] is None or row["version_id"] is None:
            raise _missing(where, reference, row)
        first = names.setdefault(row["name"], where)
        if first != where:
            raise InvalidRequest(
                f"{where}.skill_id: the name of this skill is {row['name']!r}, as that of {first}; skills of "
                "one agent need different names, since they lie side by side"
            )
        fixed.append(
            SkillReference(type=reference.type, skill_id=reference.skill_id, version=row["version_id"])
        )
    return fixed


def _missing(where: str, reference: SkillReference, row: DictRow) -> InvalidRequest:
    if row["name"] is not None:
        why = (
            f"{where}.version: skill {reference.skill_id} has no version {reference.version}; name one of "
            f"its versions, or `{LATEST}`"
        )
    elif reference.type == "anthropic":
        why = (
            f"{where}.skill_id: there is no skill named {reference.skill_id!r} here. The vendor's skills are "
            "not part of this server: upload one of that name with POST /v1/skills, or leave it out"
        )
    else:
        why = f"{where}.skill_id: skill {reference.skill_id} not found"
    return InvalidRequest(why, error_code="skill_not_found")


def attaching(agent: dict[str, Any]) -> Attach | None:
    """Notes the skills of a session that is being made, as they are now; `agent` has them pinned. None if
    there are none.

    Those of the agents that it may set to work are among them: all lie side by side in one sandbox.

    Raises (when it is called):
        InvalidRequest: one was deleted in this very moment, or two agents have different ones of one name.
    """
    agents = (agent, *member_agents(agent))
    versions = list(dict.fromkeys(skill["version"] for one in agents for skill in one["skills"]))
    if not versions:
        return None

    async def attach(connection: Connection, session_id: str) -> None:
        cursor = await connection.execute(
            "insert into session_skills (session_id, position, skill_id, version_id, name, description)"
            " select %s, w.position, v.skill_id, v.id, s.name, v.description"
            " from unnest(%s::text[]) with ordinality as w (id, position)"
            " join skill_versions v on v.id = w.id join skills s on s.id = v.skill_id returning name",
            (session_id, versions),
        )
        if cursor.rowcount != len(versions):
            raise InvalidRequest(
                "agent.skills: a skill was deleted while the session was made", error_code="skill_not_found"
            )

        names = [row["name"] for row in await cursor.fetchall()]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InvalidRequest(
                f"agent.multiagent: agents of this session have different skills, or different versions of "
                f"one, by the name {twice[0]!r}; they lie side by side, so each name can be one alone"
            )

    return attach


class SkillReach:
    """Which skills a worker may fetch: those of the sessions that it serves."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def check(
        self,
        skill_id: str,
        *,
        session_id: str | None = None,
        environment_id: str | None = None,
        pool: bool = False,
    ) -> None:
        """Raise `NotFound` unless a session has the skill: that one, one of an environment, of the pool."""
        row = await self._database.fetch_one(
            _REACHED,
            {"skill": skill_id, "session": session_id, "environment": environment_id, "pool": pool},
        )
        if row is None:
            raise not_found(skill_id)
