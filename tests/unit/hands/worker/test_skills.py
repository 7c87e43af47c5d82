"""Skills on their way from a server, Corral or not, to a session's sandbox."""

import asyncio
import io
import os
import stat
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.pace import Pace
from corral.hands.worker.skills import AttachedSkill, SessionSkills, SkillCache, attached_skills
from corral.wire.secret import Secret

KEY = Secret("key")
PACE = Pace(backoff_first=0.001, backoff_most=0.002)


def archive(*entries: tuple[str, bytes, int]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = mode << 16
            packed.writestr(info, content)
    return out.getvalue()


GREETING = archive(
    ("greeting/SKILL.md", b"read me", stat.S_IFREG | 0o644),
    ("greeting/scripts/run.sh", b"#!/bin/sh\n", stat.S_IFREG | 0o777),
)


class Server:
    """Answers as a server with one skill may: `name` and `body` are what it sends."""

    def __init__(self) -> None:
        self.name: Any = "greeting"
        self.body = GREETING
        self.failures: list[int] = []
        self.asked: list[str] = []
        paths = {"/v1/skills/{skill}/versions/{version}": self.version}
        paths["/v1/skills/{skill}/versions/{version}/content"] = self.content
        self.app = Starlette(routes=[Route(path, endpoint) for path, endpoint in paths.items()])

    def _failing(self, request: Request) -> Response | None:
        self.asked.append(request.url.path)
        return Response(status_code=self.failures.pop(0)) if self.failures else None

    async def version(self, request: Request) -> Response:
        version = request.path_params["version"]
        found = {"id": "skver_9" if version == "latest" else version, "name": self.name}
        return self._failing(request) or JSONResponse(found)

    async def content(self, request: Request) -> Response:
        return self._failing(request) or Response(self.body)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest_asyncio.fixture
async def api(server: Server) -> AsyncIterator[WorkApi]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server.app)) as http:
        yield WorkApi(http, "http://server", "worker", PACE)


def skill(version: str = "skver_1") -> AttachedSkill:
    return AttachedSkill("skill_1", version)


def session(api: WorkApi, folder: Path, *skills: AttachedSkill, name: str = "one") -> SessionSkills:
    (folder / name).mkdir()
    return SessionSkills(api, SkillCache(folder), folder / name / "skills", skills, KEY, PACE)


async def test_a_session_finds_its_skills_with_their_bits(api: WorkApi, tmp_path: Path) -> None:
    await session(api, tmp_path, skill()).bring()
    shown = tmp_path / "one" / "skills" / "greeting"
    assert (shown / "SKILL.md").read_bytes() == b"read me"
    modes = [
        stat.S_IMODE((shown / path).stat().st_mode) for path in ("SKILL.md", "scripts/run.sh", "scripts")
    ]
    assert modes == [0o444, 0o555, 0o755]


async def test_a_version_is_asked_for_once_and_shared(api: WorkApi, server: Server, tmp_path: Path) -> None:
    one, two = (session(api, tmp_path, skill(), name=name) for name in ("one", "two"))
    await asyncio.gather(one.bring(), one.bring())
    await two.bring()
    assert server.asked == [
        "/v1/skills/skill_1/versions/skver_1",
        "/v1/skills/skill_1/versions/skver_1/content",
    ]
    inodes = {(tmp_path / name / "skills/greeting/SKILL.md").stat().st_ino for name in ("one", "two")}
    assert len(inodes) == 1


async def test_latest_is_looked_up_each_time_and_fetched_once(
    api: WorkApi, server: Server, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        await session(api, tmp_path, skill("latest"), name=name).bring()
    paths = [path.removeprefix("/v1/skills/skill_1/versions/") for path in server.asked]
    assert paths == ["latest", "skver_9/content", "latest"]


async def test_a_server_that_is_busy_is_asked_again(api: WorkApi, server: Server, tmp_path: Path) -> None:
    server.failures = [529, 500]
    await session(api, tmp_path, skill()).bring()
    assert (tmp_path / "one/skills/greeting").is_dir()


async def test_a_server_that_stays_away_is_an_error_and_the_next_call_tries_again(
    api: WorkApi, server: Server, tmp_path: Path
) -> None:
    server.failures = [500] * 4
    brought = session(api, tmp_path, skill())
    with pytest.raises(ApiFailure):
        await brought.bring()
    assert not (tmp_path / "one/skills").exists()
    await brought.bring()
    assert (tmp_path / "one/skills/greeting").is_dir()


@pytest.mark.parametrize("status", [400, 403, 404])
async def test_a_skill_that_cannot_be_had_is_left_out(
    api: WorkApi, server: Server, tmp_path: Path, status: int
) -> None:
    server.failures = [status]
    await session(api, tmp_path, skill()).bring()
    assert list((tmp_path / "one/skills").iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".", "a" * 129, "ü", "a\n"])
async def test_a_name_that_leads_elsewhere_is_not_used(
    api: WorkApi, server: Server, tmp_path: Path, name: str
) -> None:
    server.name = name
    await session(api, tmp_path, skill()).bring()
    assert list((tmp_path / "one/skills").iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [
        b"no archive",
        GREETING[:-5],
        archive(("greeting/../../up", b"x", stat.S_IFREG | 0o644)),
        archive(("greeting/link", b"/etc/passwd", stat.S_IFLNK | 0o777)),
        archive(("SKILL.md", b"x", stat.S_IFREG | 0o644)),
    ],
)
async def test_an_archive_that_does_harm_is_not_unpacked(
    api: WorkApi, server: Server, tmp_path: Path, body: bytes
) -> None:
    server.body = body
    await session(api, tmp_path, skill()).bring()
    assert list((tmp_path / "one/skills").iterdir()) == []
    assert os.listdir(tmp_path / ".skills") == []


async def test_what_nobody_has_used_for_long_is_removed_and_sessions_keep_theirs(
    api: WorkApi, tmp_path: Path
) -> None:
    await session(api, tmp_path, skill()).bring()
    cache = SkillCache(tmp_path)
    await cache.sweep(3600)
    assert os.listdir(tmp_path / ".skills") == ["skver_1"]
    os.utime(tmp_path / ".skills" / "skver_1", (0, 0))
    await cache.sweep(3600)
    assert os.listdir(tmp_path / ".skills") == []
    assert (tmp_path / "one/skills/greeting/SKILL.md").read_bytes() == b"read me"


def test_what_is_no_list_of_skills_is_refused() -> None:
    assert attached_skills({}) == []
    assert attached_skills({"skills": [{"type": "custom", "skill_id": "s", "version": "v"}]}) == [
        AttachedSkill("s", "v")
    ]
    with pytest.raises(ApiFailure, match="a skill that cannot be read"):
        attached_skills({"skills": [{"skill_id": 3}]})
