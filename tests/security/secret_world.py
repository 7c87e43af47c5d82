"""A deployment in processes of its own that has every kind of secret, and everything that it leaves behind.

`Kept` collects: each answer of the API, each log line at the most talkative level. `places` reads the rest:
rows of the database, files, memory of processes.
"""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import quote, quote_plus
from uuid import uuid4

import httpx
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from corral.store.database import Database
from corral.testing import ScriptedModel
from tests.processes import gone
from tests.security.test_vault_key import memory
from tests.security.test_vault_secrets import everything_in_the_database
from tests.unit.cli.test_gateway import gateway_of
from tests.unit.cli.test_up import START_SECONDS, Up

HOST = "api.internal.example"
GIT_HOST = "git.internal.example"
_HOSTS = f"127.0.0.1 localhost {HOST} {GIT_HOST}\n"
# In mounts of its own, a process looks names up in another file.
_NAMES = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'


def secret(name: str) -> str:
    """A value that occurs nowhere else, has the shape of no secret, and looks another in a URL."""
    return f"{name}.{uuid4().hex}+{uuid4().hex}/="


def forms(text: str) -> Iterator[bytes]:
    """How a text may lie around: plain, escaped in JSON or a URL, in hexadecimal, in base64 anywhere."""
    raw = text.encode()
    yield from {
        raw,
        json.dumps(text)[1:-1].encode(),
        quote(text, safe="").encode(),
        quote_plus(text).encode(),
    }
    yield from (raw.hex().encode(), raw.hex().upper().encode(), text.encode("utf-16-le"))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            yield encode(bytes(before) + raw)[4:-4]


class Places(dict[str, bytes]):
    """Everything that can be searched, by name. Too much to be printed when a test fails."""

    def __repr__(self) -> str:
        return repr(list(self))


@dataclass
class Kept:
    """What was answered and logged, of all lives of the deployment."""

    answers: list[bytes] = field(default_factory=list[bytes])
    logs: bytearray = field(default_factory=bytearray)


@dataclass
class Deployment:
    """`corral up`, running."""

    up: Up
    http: httpx.AsyncClient
    kept: Kept
    data: Path

    async def ask(self, method: str, path: str, body: Any = None, *, keep: bool = True) -> Any:
        """A request; its answer is kept unless it is the one answer that shows a secret."""
        response = await self.http.request(method, path, json=body)
        if keep:
            self.kept.answers += [response.content, str(response.headers).encode()]
        return response.json()

    async def says(self, session_id: str, script: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What the session's agent does now; all events once it is idle again."""
        text = f"go\nscript: {json.dumps(script)}"
        message = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        path = f"/v1/sessions/{session_id}/events"
        sent = await self.ask("POST", path, {"events": [message]})
        begun = sent["data"][0]["id"]
        async with asyncio.timeout(120):
            while True:
                events = (await self.ask("GET", f"{path}?limit=1000"))["data"]
                after = events[[event["id"] for event in events].index(begun) + 1 :]
                if any(event["type"] == "session.status_idle" for event in after):
                    return list(after)
                await asyncio.sleep(0.1)

    def sandboxes(self) -> list[int]:
        """The processes that are inside of sandboxes, or hold one."""
        return [pid for pid in self.up.children() if b"inside.pyz" in _command_line(pid)]

    def places(self, database_rows: bytes) -> Places:
        """What there is to search, now."""
        found = Places(
            {
                "answers": b"\n".join(self.kept.answers),
                "log": bytes(self.kept.logs),
                "database": database_rows,
                "memory of the brain": memory(self.up.process.pid),
                "memory of the worker": memory(self.up.worker()),
                "memory of the gateway": memory(gateway_of(self.up)),
                "memory of sandboxes": b"".join(memory(pid) for pid in self.sandboxes()),
                "environment of sandboxes": b"".join(
                    Path(f"/proc/{pid}/{file}").read_bytes()
                    for pid in self.sandboxes()
                    for file in ("environ", "cmdline")
                ),
                "command lines": b"".join(
                    _command_line(pid) for pid in {*self.up.children(), self.up.process.pid}
                ),
            }
        )
        for path in self.data.rglob("*"):
            if path.is_file() and not path.is_symlink():
                found[f"file {path.relative_to(self.data)}"] = path.read_bytes()
        return found


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def search(places: Places, secrets: Mapping[str, str]) -> set[tuple[str, str]]:
    """Which secret is in which place, in whatever form. `grep` looks for all forms in one pass."""
    names = {form: name for name, text in secrets.items() for form in forms(text)}
    found = set[tuple[str, str]]()
    with NamedTemporaryFile() as patterns:
        patterns.write(b"\n".join(names))
        patterns.flush()
        for place, content in places.items():
            grep = ["grep", "-a", "-o", "-F", "-f", patterns.name]
            done = subprocess.run(grep, input=content, capture_output=True, check=False, env={"LC_ALL": "C"})
            assert done.returncode in (0, 1), done.stderr
            found |= {(names[line], place) for line in done.stdout.splitlines()}
    return found


@asynccontextmanager
async def life(folder: Path, kept: Kept, settings: Mapping[str, str]) -> AsyncGenerator[Deployment]:
    """One life of the deployment, from its start to its end in good order."""
    hosts = folder / "hosts"
    hosts.write_text(_HOSTS)
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", _NAMES, "sh", str(hosts)),
        *(sys.executable, "-m", "corral.cli", "up", "--data", str(folder / "data"), "--port", "0", "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "CORRAL_LOG__LEVEL": "debug", "CORRAL_WORKER__SANDBOX": "bubblewrap", **settings},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    reading = asyncio.create_task(_read(process.stderr, kept.logs))
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
            assert line, kept.logs.decode()
            while b'"event": "ready"' not in kept.logs:
                await asyncio.sleep(0.05)
        up = Up(process, json.loads(line))
        async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers, timeout=60) as http:
            yield Deployment(up, http, kept, folder / "data")
        await up.stop()
    finally:
        if process.returncode is None:
            process.kill()
            await gone(process.pid)
        await reading


async def _read(stream: asyncio.StreamReader, into: bytearray) -> None:
    while piece := await stream.read(65536):
        into += piece


@asynccontextmanager
async def database_with_password(url: str, password: str) -> AsyncGenerator[tuple[str, Database]]:
    """The address of the database for a user with this password, and the database as its owner sees it."""
    name = sql.Identifier(f"keeper_{uuid4().hex}")
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(
            sql.SQL("create role {} superuser login password {}").format(name, sql.Literal(password))
        )
        try:
            async with Database(url, max_size=2) as database:
                yield make_conninfo(url, user=name._obj[0], password=password), database  # pyright: ignore
        finally:
            owner.execute(sql.SQL("reassign owned by {} to current_user").format(name))
            owner.execute(sql.SQL("drop role {}").format(name))


async def rows_of(database: Database) -> bytes:
    """Every column of every row, the private ones of the log too, as a dump would have it."""
    return await everything_in_the_database(database)


def settings_of(
    model: ScriptedModel, *, url: str, inference_key: str, bundle: Path, git: str, ports: list[int]
) -> dict[str, str]:
    """The settings of the deployment, as an operator gives them."""
    return {
        "CORRAL_STORE__URL": url,
        "CORRAL_INFERENCE__PROVIDER": "gateway",
        "CORRAL_INFERENCE__BASE_URL": model.base_url,
        "CORRAL_INFERENCE__API_KEY": inference_key,
        "CORRAL_GATEWAY__INTERNAL": json.dumps(["127.0.0.0/8", "*.internal.example"]),
        "CORRAL_GATEWAY__CA_BUNDLE": str(bundle),
        "CORRAL_GATEWAY__GIT_HOSTS": json.dumps([git]),
        "CORRAL_GATEWAY__EGRESS_PORTS": json.dumps([80, 443, *ports]),
        "CORRAL_WEBHOOKS__INTERNAL": json.dumps(["127.0.0.0/8"]),
        "CORRAL_WEBHOOKS__RETRY_BACKOFF_SECONDS": "0.01",
        "CORRAL_WEBHOOKS__RETRY_BACKOFF_MAX_SECONDS": "0.02",
    }
