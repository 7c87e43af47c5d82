"""Imports a session from a file that a server has exported: under new ids, closed at its end, and marked.

A file can be anybody's work. It is looked through first (`inspecting`); what it holds of secrets' names, of
memory and of skills that are not here does not come along; and nothing that it says was allowed or under way
can run.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from typing import IO, Any, Final, cast

import msgspec
import psycopg

from corral.brain.transcript import Transcript
from corral.bus.hub import Bus, session_topic
from corral.extensions.archive import ArchiveReader, ExportedFile, Member
from corral.extensions.forking import PAGE, WorkItems, finish
from corral.extensions.inspecting import Inspected, inspect, stored_events
from corral.extensions.log_copy import LogCopy, silence_webhooks
from corral.extensions.origins import write_origin
from corral.extensions.renaming import Renaming
from corral.inference.prices import PriceTable
from corral.resources import skill_references
from corral.resources.blobs import Blob, Blobs
from corral.resources.environments import Environments
from corral.resources.outputs import Outputs
from corral.resources.repositories import AttachedRepositories
from corral.resources.vaults import Vaults
from corral.session.budget import budget_object
from corral.session.chain import StoredEvent
from corral.session.events import Event
from corral.session.records import locked
from corral.session.seals import VerifyKey
from corral.session.shown import Row
from corral.session.usage import UNUSED
from corral.store.database import Connection, Database
from corral.wire import metadata as meta
from corral.wire.environments import Environment, SelfHosted, check_reach
from corral.wire.errors import InvalidRequest, NotFound, RequestTooLarge
from corral.wire.files import mime_type, stored_name
from corral.wire.ids import new_id
from corral.wire.multiagent import member_agents
from corral.wire.session_resources import RepositoryParams, check_overlap, upload_path
from corral.wire.sessions import BudgetLimit, Title

_NOT_A_LOG: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, msgspec.MsgspecError)


class ImportWishes(msgspec.Struct, frozen=True):
    """Where an imported session goes, and what it gets here."""

    environment_id: str | None = None
    """None: the one of the file, if it is here."""
    vault_ids: Sequence[str] = ()


class Importing:
    """Imports sessions. `keys` are those whose signature says that a file is of this operator."""

    def __init__(
        self,
        database: Database,
        bus: Bus,
        *,
        blobs: Blobs,
        environments: Environments,
        repositories: AttachedRepositories,
        vaults: Vaults,
        work: WorkItems,
        prices: PriceTable,
        keys: Sequence[VerifyKey],
    ) -> None:
        self._database = database
        self._bus = bus
        self._blobs = blobs
        self._environments = environments
        self._repositories = repositories
        self._vaults = vaults
        self._work = work
        self._prices = prices
        self._keys = {key.id for key in keys}

    async def take(self, body: AsyncIterable[bytes], wishes: ImportWishes) -> Row:
        """The row of a session made of a file, whose bytes `body` brings: all of it, or nothing.

        Raises:
            InvalidRequest: the file is not in order, or its environment or a vault cannot be used.
            RequestTooLarge: it has more bytes than one file may.
            NotFound: the environment or a vault does not exist.
        """
        with tempfile.TemporaryFile() as file:
            await self._spool(body, file)
            found = await asyncio.to_thread(inspect, file)
            if found.problem is not None:
                raise InvalidRequest(f"The log of the file is not what was exported: {found.problem.message}")
            environment = await self._environment(found, wishes)
            await self._vaults.check_usable(list(wishes.vault_ids))
            received: dict[str, Blob] = {}
            try:
                async for file_id, blob in self._files(file):
                    received[file_id] = blob
                row = await self._make(file, found, environment, wishes, received)
            except BaseException:
                for blob in received.values():
                    await self._blobs.drop(blob.id)
                raise
        if isinstance(environment.config, SelfHosted):
            await self._work.ensure(row["id"], environment.id)
        await self._bus.publish(session_topic(row["id"]))
        return row

    async def _spool(self, body: AsyncIterable[bytes], file: IO[bytes]) -> None:
        size = 0
        async for chunk in body:
            size += len(chunk)
            if size > self._blobs.limits.most:
                raise RequestTooLarge(f"The file exceeds the maximum of {self._blobs.limits.most} bytes")
            await asyncio.to_thread(file.write, chunk)

    async def _environment(self, found: Inspected, wishes: ImportWishes) -> Environment:
        if wishes.environment_id is not None:
            return await self._environments.for_session(wishes.environment_id)
        try:
            return await self._environments.for_session(str(found.session.environment.get("id")))
        except NotFound:
            raise InvalidRequest(
                "environment_id: the environment of the session is not here; name one of this server's"
            ) from None

    async def _files(self, file: IO[bytes]) -> AsyncGenerator[tuple[str, Blob]]:
        """The files of the file, put into the store. Nobody sees them until a row refers to them."""
        file.seek(0)
        members = ArchiveReader(file).members()
        while (member := await asyncio.to_thread(next, members, None)) is not None:
            if member.name.startswith("files/"):
                yield member.name.removeprefix("files/"), await self._blobs.receive(_pieces(member))

    async def _make(
        self,
        file: IO[bytes],
        found: Inspected,
        environment: Environment,
        wishes: ImportWishes,
        received: dict[str, Blob],
    ) -> Row:
        session, self_hosted = found.session, isinstance(environment.config, SelfHosted)
        left_out: list[str] = _left_behind(found)
        async with self._database.transaction() as connection:
            try:
                agent = await _with_skills_here(connection, session.agent, left_out)
                check_reach(environment.config, agent)
                renaming = _renaming(found)
                made, thread = new_id("sesn"), renaming.name(session.primary_thread_id)
                await _insert_session(connection, found, made, thread, agent, environment.id, wishes)
                if (attach := skill_references.attaching(agent)) is not None:
                    await attach(connection, made)
                await self._attach(
                    connection, made, found, received, renaming, left_out, self_hosted=self_hosted
                )
                copy = LogCopy(
                    connection,
                    made,
                    thread,
                    renaming,
                    self_hosted=self_hosted,
                    agent=agent,
                    prices=self._prices,
                )
                transcripts = _Transcripts(agent)
                events = stored_events(file)
                while page := await asyncio.to_thread(_page, events):
                    await copy.add(page, transcripts.add)
                origin = {
                    "session_id": session.id,
                    "event_id": found.last_event,
                    "seq": found.events,
                    "head": None if found.head is None else found.head.hex(),
                }
                budget = _budget(session.budget)
                changes = {} if budget is None and copy.state.budget is None else {"budget": budget}
                cursor = await connection.execute("select clock_timestamp() as at")
                at = await cursor.fetchone()
                assert at is not None
                ended = await copy.close({"kind": "import", **origin}, at["at"], **changes)
                transcripts.check()
            except _NOT_A_LOG as error:
                raise InvalidRequest(
                    f"The log of the file is none that a session may have: {error!r}"
                ) from error
            except (psycopg.IntegrityError, psycopg.DataError) as error:
                raise InvalidRequest("The log of the file is none that a session may have") from error
            await copy.write_threads(frozenset(map(renaming.name, session.archived_threads)))
            await finish(connection, made, copy, ended, {})
            signed_by = None if found.signed_by is None else found.signed_by.id
            known = signed_by if signed_by in self._keys else None
            await write_origin(connection, made, "import", origin, left_out, known)
            await silence_webhooks(connection, made)
            return await locked(connection, made)

    async def _attach(
        self,
        connection: Connection,
        session_id: str,
        found: Inspected,
        received: dict[str, Blob],
        renaming: Renaming,
        left_out: list[str],
        *,
        self_hosted: bool,
    ) -> None:
        for one in found.session.files:
            if one.role == "resource" and self_hosted:
                continue
            await self._insert_file(connection, session_id, one, received[one.id], renaming.name(one.id))
        if self_hosted:
            left_out += ["the resources: the environment is self_hosted"] if found.session.resources else []
            return
        taken: list[str] = []
        for resource in found.session.resources:
            body: dict[str, Any] = resource["body"]
            match resource["type"]:
                case "file" if resource["file_id"] in received:
                    path = upload_path(resource["mount_path"], resource["file_id"], "")
                    check_overlap(path, taken, "")
                    taken.append(path)
                    await connection.execute(
                        "insert into session_resources (id, session_id, type, mount_path, file_id, body)"
                        " values (%s, %s, 'file', %s, %s, %s)",
                        (
                            new_id("sesrsc"),
                            session_id,
                            path,
                            renaming.name(resource["file_id"]),
                            msgspec.json.encode(renaming.value(body)).decode(),
                        ),
                    )
                case "github_repository":
                    kept = {name: body[name] for name in ("url", "mount_path", "checkout")}
                    params = msgspec.convert({"type": "github_repository", **kept}, RepositoryParams)
                    try:
                        row = await self._repositories.attach(connection, session_id, params, taken, "")
                        taken.append(row["mount_path"])
                    except InvalidRequest as refused:
                        left_out.append(f"{body['url']}: {refused.message}")
                case _:
                    left_out.append(f"{resource['mount_path']}: a {resource['type']} of the other server")

    async def _insert_file(
        self, connection: Connection, session_id: str, one: ExportedFile, blob: Blob, file_id: str
    ) -> None:
        output = Outputs.admitted_path(one.path) if one.role == "output" else None
        name = stored_name(one.filename) or "unnamed"
        await self._blobs.refer(connection, blob)
        await connection.execute(
            "insert into files (id, blob_id, filename, mime_type, size_bytes, downloadable, session_id,"
            " output_path) values (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                file_id,
                blob.id,
                name,
                mime_type(one.mime_type, name, blob.head),
                blob.size_bytes,
                output is not None,
                None if one.role == "shown" else session_id,
                output,
            ),
        )


class _Transcripts:
    """What the models of the threads would be shown: it has to be possible to say it."""

    def __init__(self, agent: dict[str, Any]) -> None:
        self._model: str = agent["model"]["id"]
        self._threads: dict[str, Transcript] = {}

    def add(self, event: Event) -> None:
        self._threads.setdefault(event.thread_id, Transcript(self._model)).add(event)

    def check(self) -> None:
        for transcript in self._threads.values():
            transcript.messages()


def _left_behind(found: Inspected) -> list[str]:
    left_out: list[str] = []
    if found.session.vault_ids:
        left_out.append("the vaults: name those of this server")
    if found.session.mcp_tools:
        left_out.append("the lists of MCP servers' tools: they are listed anew")
    return left_out


def _renaming(found: Inspected) -> Renaming:
    renaming = Renaming()
    renaming.add(found.event_ids, "sevt")
    renaming.add(found.outcomes, "outc")
    # One that did not come along must not turn out to be another of this server.
    renaming.add([one.id for one in found.session.files], "file")
    renaming.add(found.file_ids, "file")
    renaming.add(found.threads, "sthr")
    return renaming


async def _insert_session(
    connection: Connection,
    found: Inspected,
    session_id: str,
    thread_id: str,
    agent: dict[str, Any],
    environment_id: str,
    wishes: ImportWishes,
) -> None:
    session = found.session
    budget = _budget(session.budget)
    await connection.execute(
        "insert into sessions (id, title, metadata, environment_id, agent_id, agent_version, agent,"
        " vault_ids, budget, primary_thread_id, usage) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
        (
            session_id,
            msgspec.convert(session.title, Title | None),
            msgspec.json.encode(meta.created(session.metadata)).decode(),
            environment_id,
            agent["id"],
            agent["version"],
            msgspec.json.encode(agent).decode(),
            list(wishes.vault_ids),
            None if budget is None else msgspec.json.encode(budget).decode(),
            thread_id,
            msgspec.json.encode(UNUSED).decode(),
        ),
    )


def _budget(budget: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if budget is None else budget_object(msgspec.convert(budget, BudgetLimit).cents)


async def _with_skills_here(
    connection: Connection, agent: dict[str, Any], left_out: list[str]
) -> dict[str, Any]:
    """The agent with those of its skills alone that this server has."""
    wanted = {skill["version"] for one in (agent, *member_agents(agent)) for skill in one["skills"]}
    cursor = await connection.execute("select id from skill_versions where id = any(%s)", (list(wanted),))
    here = {row["id"] for row in await cursor.fetchall()}
    left_out += [f"the skill {version}: it is not on this server" for version in sorted(wanted - here)]
    return _with_skills(agent, here)


def _with_skills(value: Any, here: set[str]) -> Any:
    if isinstance(value, list):
        return [_with_skills(item, here) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    agent = {**cast("dict[str, Any]", value)}
    if "skills" in agent:
        agent["skills"] = [skill for skill in agent["skills"] if skill["version"] in here]
    for name in ("multiagent", "agents", "subagents", "predefined_agents"):
        if name in agent:
            agent[name] = _with_skills(agent[name], here)
    return agent


def _page(events: Any) -> list[StoredEvent]:
    page: list[StoredEvent] = []
    for event in events:
        page.append(event)
        if len(page) == PAGE:
            break
    return page


async def _pieces(member: Member) -> AsyncGenerator[bytes]:
    pieces = member.pieces()
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece
