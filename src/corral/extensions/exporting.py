"""Exports a session as one file, while it is read: nothing is kept but a page of it."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import msgspec
import structlog

import corral
from corral.brain.web_tools import NO_WEB, WebOffer
from corral.extensions.archive import (
    FILES,
    FORMAT,
    MANIFEST,
    SESSION,
    VERSION,
    ArchiveWriter,
    EventLine,
    ExportedFile,
    ExportedSession,
    Manifest,
)
from corral.resources.blobs import Blobs
from corral.session.chain import StoredEvent, Walk
from corral.session.sealing import EVENT_COLUMNS
from corral.session.seals import SigningKey
from corral.session.shown import Row, not_found
from corral.store.database import Database
from corral.wire.errors import InvalidRequest
from corral.wire.times import now, to_wire

_PAGE: Final = 200
_SESSION: Final = """
select s.id, s.title, s.metadata, s.agent, s.vault_ids, s.budget, s.primary_thread_id, s.status, s.created_at,
    s.last_seq, json_build_object('id', e.id, 'name', e.name, 'type', e.config ->> 'type') as environment,
    coalesce((select json_agg(t.id) from threads t where t.session_id = s.id and t.archived_at is not null),
        '[]') as archived_threads,
    coalesce((select json_agg(json_build_object('type', r.type, 'body', r.body, 'file_id', r.file_id,
        'mount_path', r.mount_path, 'from_start', r.created_at = s.created_at) order by r.position)
        from session_resources r where r.session_id = s.id), '[]') as resources,
    coalesce((select json_agg(json_build_object('version_id', k.version_id, 'skill_id', k.skill_id,
        'name', k.name, 'description', k.description) order by k.position)
        from session_skills k where k.session_id = s.id), '[]') as skills,
    coalesce((select json_agg(json_build_object('server_name', m.server_name, 'url', m.url, 'tools', m.tools)
        order by m.server_name) from session_mcp_tools m where m.session_id = s.id), '[]') as mcp_tools,
    (select json_build_object('kind', o.kind, 'session_id', o.source_session_id,
        'event_id', o.source_event_id, 'seq', o.source_seq) from session_origins o where o.session_id = s.id)
        as origin
from sessions s join environments e on e.id = s.environment_id where s.id = %s
"""
# The files of the conversation are named in sources of content blocks; a file of another session is not
# taken.
_FILES: Final = """
with shown as (
    select distinct m[1] as id from events e,
        regexp_matches(e.body::text, '"file_id":"(file_[A-Za-z0-9]{1,64})"', 'g') as m
    where e.session_id = %(session)s and e.seq <= %(seq)s
        and e.type in ('user.message', 'user.custom_tool_result', 'user.tool_result', 'agent.tool_result')
)
select f.id, f.blob_id, f.filename, f.mime_type, f.size_bytes, f.output_path, f.session_id, r.mount_path
from files f left join session_resources r on r.file_id = f.id and r.session_id = %(session)s
where (f.session_id = %(session)s or (f.session_id is null and f.id in (select id from shown)))
    and f.blob_id is not null and (f.expires_at is null or f.expires_at > now())
order by f.id collate "C" limit %(most)s
"""

_log = structlog.get_logger(__name__)


class Exporting:
    """Exports sessions. `key` signs the files."""

    def __init__(
        self, database: Database, blobs: Blobs, key: SigningKey | None, web: WebOffer = NO_WEB
    ) -> None:
        self._web = web
        self._database = database
        self._blobs = blobs
        self._key = key

    async def export(self, session_id: str) -> AsyncGenerator[bytes]:
        """The bytes of a session's file. What is written to the session meanwhile is not in it.

        Raises (before the first byte):
            NotFound: there is no such session.
            InvalidRequest: it has too many files.
        """
        row = await self._database.fetch_one(_SESSION, (session_id,))
        if row is None:
            raise not_found(session_id)
        last_seq: int = row["last_seq"]
        files = await self._database.fetch(
            _FILES, {"session": session_id, "seq": last_seq, "most": FILES + 1}
        )
        if len(files) > FILES:
            raise InvalidRequest(f"The session has more than {FILES} files, which an export cannot hold")
        # The head comes first in the file: the log is read twice, the first time for it alone.
        walk = Walk(session_id)
        async for events in self._pages(session_id, last_seq):
            for event in events:
                walk.add(event)
        if walk.problem is not None:
            _log.error(
                "a log that was changed is exported", session_id=session_id, found=walk.problem.message
            )
        return self._written(row, files, walk)

    async def _written(self, row: Row, files: Sequence[Row], walk: Walk) -> AsyncGenerator[bytes]:
        writer = ArchiveWriter()
        manifest = Manifest(
            format=FORMAT,
            version=VERSION,
            corral=corral.__version__,
            exported_at=now(),
            session_id=row["id"],
            events=row["last_seq"],
            head=walk.head.hex() if walk.seq == row["last_seq"] > 0 else None,
        )
        yield writer.member(MANIFEST, msgspec.json.encode(manifest))
        yield writer.member(SESSION, msgspec.json.encode(_session(row, files, self._web)))
        number = 0
        async for events in self._pages(row["id"], row["last_seq"]):
            number += 1
            lines = b"".join(msgspec.json.encode(EventLine.of(event)) + b"\n" for event in events)
            yield await asyncio.to_thread(writer.member, f"events/{number:05}.jsonl", lines)
        for file in files:
            yield writer.begin(f"files/{file['id']}", file["size_bytes"])
            async with self._blobs.reading(file["blob_id"]) as pieces:
                async for piece in pieces:
                    yield await asyncio.to_thread(writer.piece, piece)
            yield writer.end()
        yield writer.finish(self._key)

    async def _pages(self, session_id: str, last_seq: int) -> AsyncGenerator[list[StoredEvent]]:
        after = 0
        while after < last_seq:
            rows = await self._database.fetch(
                "select " + EVENT_COLUMNS + " from events where session_id = %s and seq > %s and seq <= %s"
                " order by seq limit %s",
                (session_id, after, last_seq, _PAGE),
            )
            if not rows:
                return
            after = rows[-1]["seq"]
            yield [StoredEvent(**row) for row in rows]


def _session(row: Row, files: Sequence[Row], web: WebOffer) -> ExportedSession:
    kept: dict[str, Any] = {
        name: value for name, value in row.items() if name not in ("last_seq", "created_at")
    }
    return ExportedSession(
        **kept,
        created_at=to_wire(row["created_at"]),
        files=[_file(row["id"], file) for file in files],
        web=msgspec.to_builtins(web),
    )


def _file(session_id: str, file: Row) -> ExportedFile:
    own = file["session_id"] == session_id
    role = "output" if file["output_path"] is not None else "resource" if own else "shown"
    return ExportedFile(
        id=file["id"],
        role=role,
        filename=file["filename"],
        mime_type=file["mime_type"],
        size_bytes=file["size_bytes"],
        path=file["output_path"] or file["mount_path"],
    )
