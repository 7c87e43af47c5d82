"""pip and npm in a sandbox: packages from the hosts that the operator has named, by way of the gateway."""

import base64
import hashlib
import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corral.gateway.policy import Walls
from corral.testing import ScriptedModel
from tests.e2e.test_sandbox_network import agent_session, ran, worker
from tests.egress_world import EgressWorld, egress_world
from tests.upstream_servers import Answer, Asked, upstream

INDEX = "packages.internal.example"
WITH: dict[str, Any] = {"type": "limited", "allowed_hosts": [], "allow_package_managers": True}
WITHOUT: dict[str, Any] = {"type": "limited", "allowed_hosts": [], "allow_package_managers": False}
PIP = (
    "python3 -m pip install --disable-pip-version-check --no-cache-dir --retries 0 --target lib "
    "--index-url {index}/simple/ hello"
)
NPM = (
    "mkdir -p app && cd app && npm install --no-audit --no-fund --fetch-retries 0 "
    "--registry {index}/npm/ hello"
)


def wheel() -> bytes:
    """A package for pip that says hello."""
    held = io.BytesIO()
    meta = "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n"
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("hello.py", "print('hello from pip')\n")
        archive.writestr("hello-1.0.dist-info/METADATA", meta)
        archive.writestr(
            "hello-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("hello-1.0.dist-info/RECORD", "")
    return held.getvalue()


def tarball() -> bytes:
    """A package for npm that says hello."""
    held = io.BytesIO()
    files = {
        "package.json": json.dumps({"name": "hello", "version": "1.0.0", "main": "index.js"}),
        "index.js": "console.log('hello from npm')\n",
    }
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content.encode()))
    return held.getvalue()


def index(base: str) -> dict[str, tuple[str, bytes]]:
    """What the index serves, by path: its type and its content."""
    package, archive = wheel(), tarball()
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    version = {
        "name": "hello",
        "version": "1.0.0",
        "dist": {"tarball": f"{base}/npm/hello/-/hello-1.0.0.tgz", "integrity": integrity},
    }
    document = {"name": "hello", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    link = f'<a href="/files/hello-1.0-py3-none-any.whl#sha256={hashlib.sha256(package).hexdigest()}">w</a>'
    return {
        "/simple/hello/": ("text/html", f"<!DOCTYPE html><html><body>{link}</body></html>".encode()),
        "/files/hello-1.0-py3-none-any.whl": ("application/octet-stream", package),
        "/npm/hello": ("application/json", json.dumps(document).encode()),
        "/npm/hello/-/hello-1.0.0.tgz": ("application/octet-stream", archive),
    }


class Index:
    """A package index. `base`: its address, known once it runs."""

    base = ""

    async def respond(self, asked: Asked) -> Answer:
        """Serve a file of the index."""
        found = index(self.base).get(asked.path)
        if found is None:
            return 404, [("content-length", "0")], []
        kind, content = found
        return 200, [("content-type", kind), ("content-length", str(len(content)))], [content]


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, open_folder: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway whose operator has named a package index of its own network."""
    walls = Walls(package_hosts=(INDEX,))
    async with egress_world(database_url, model, open_folder, walls=walls) as world:
        yield world


@pytest.mark.parametrize(
    ("program", "command", "said"),
    [
        ("pip", f"{PIP} && PYTHONPATH=lib python3 -c 'import hello'", "hello from pip"),
        ("npm", f"{NPM} && node -e \"require('hello')\"", "hello from npm"),
    ],
)
async def test_packages_come_from_the_index_that_the_operator_has_named(
    world: EgressWorld, open_folder: Path, program: str, command: str, said: str
) -> None:
    """pip and npm find the way out and trust its certificate without being told; where the environment does
    not allow package managers, they get nothing."""
    if shutil.which(program, path="/usr/bin:/usr/local/bin") is None:
        pytest.fail(f"{program} must be installed to run the tests")
    packages = Index()
    async with (
        upstream(world.outside.context(INDEX), respond=packages.respond) as server,
        worker(world, open_folder),
    ):
        packages.base = f"https://{INDEX}:{server.port}"
        allowed: Any = await agent_session(world, WITH)
        output, failed = await ran(allowed, command.format(index=packages.base))
        assert not failed, output
        assert said in output
        decisions = {(row["decision"], row["reason"]) for row in await world.decisions(allowed.id)}
        assert decisions == {("allowed", "package_manager")}
        before = len(server.asked)
        barred: Any = await agent_session(world, WITHOUT)
        flags = " --retries 0" if program == "pip" else " --fetch-retries 0"
        output, failed = await ran(
            barred, command.format(index=packages.base).replace(" hello", flags + " hello", 1)
        )
        assert failed
        assert said not in output
        assert len(server.asked) == before
