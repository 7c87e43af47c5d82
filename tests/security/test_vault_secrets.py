"""Secrets that were put into a vault, looked for everywhere but in the vault.

The attacker reads every answer of the API, every log line before redaction, every event, and the files of
the database. He also writes to the database. He gets nothing, and what he changes is noticed.
"""

import base64
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
import structlog
from psycopg import sql

from corral.settings import Inference, Settings
from corral.settings import Vault as VaultSettings
from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.vault import rows
from corral.vault.keys import PrivateKey
from corral.vault.sealing import CannotOpen, key_ring
from tests.corral_server import Corral, running_corral

KEY = PrivateKey.generate()


def secret(name: str) -> str:
    """A secret that occurs nowhere else; it has the shape of none, so no redaction helps."""
    return f"{name}{uuid4().hex}ü"


def forms(text: str) -> Iterator[bytes]:
    """How a text may lie around: plain, escaped, in hexadecimal, in base64 at any offset."""
    raw = text.encode()
    ascii_part = text[:-1].encode()
    yield from (raw, ascii_part, raw.hex().encode(), raw.hex().upper().encode(), text.encode("utf-16-le"))
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + ascii_part).rstrip(b"=")
        yield encoded[4:-4]


@dataclass
class Watched:
    """A server whose every answer and log line is kept."""

    corral: Corral
    http: httpx.AsyncClient
    seen: list[bytes] = field(default_factory=list[bytes])

    async def send(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        content = body if isinstance(body, bytes) else None if body is None else msgspec.json.encode(body)
        response = await self.http.request(method, path, content=content)
        self.seen += [response.content, str(response.headers).encode()]
        assert response.status_code == status, response.text
        return response.json()


@asynccontextmanager
async def watched(database_url: str, model: ScriptedModel) -> AsyncGenerator[Watched]:
    settings = Settings(
        inference=Inference(provider="gateway", base_url=model.base_url),
        vault=VaultSettings(public_key=KEY.public.text),
    )
    async with running_corral(database_url, model, settings=settings) as corral:
        headers = {"x-api-key": corral.api_key}
        async with httpx.AsyncClient(base_url=corral.base_url, headers=headers, timeout=30) as http:
            yield Watched(corral, http)


def oauth(secrets: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "mcp_oauth",
        "access_token": secrets["access_token"],
        "mcp_server_url": "https://mcp.example.com/mcp",
        "refresh": {
            "client_id": "client",
            "refresh_token": secrets["refresh_token"],
            "token_endpoint": "https://auth.example.com/token",
            "token_endpoint_auth": {
                "type": "client_secret_basic",
                "client_secret": secrets["client_secret"],
            },
        },
    }


def bearer(token: Any, host: str = "other.example.com") -> dict[str, Any]:
    return {"type": "static_bearer", "token": token, "mcp_server_url": f"https://{host}"}


def variable(value: str) -> dict[str, Any]:
    return {
        "type": "environment_variable",
        "secret_name": "API_KEY",
        "secret_value": value,
        "networking": {"type": "unrestricted"},
    }


async def everything_in_the_database(database: Database) -> bytes:
    """Every column of every row, as a dump would have it."""
    tables = await database.fetch("select tablename from pg_tables where schemaname = 'public'")
    assert {"vault_secrets", "vault_credentials", "events"} <= {table["tablename"] for table in tables}
    found: list[bytes] = []
    for table in tables:
        query = sql.SQL("select t::text as row from {} t").format(sql.Identifier(table["tablename"]))
        found += [row["row"].encode() for row in await database.fetch(query)]
    return b"\n".join(found)


async def files_of_the_database(database: Database) -> bytes:
    """The pages on disk, and the write-ahead log."""
    await database.execute("checkpoint")
    row = await database.fetch_one(
        "select current_setting('data_directory') as folder,"
        " (select oid from pg_database where datname = current_database()) as oid"
    )
    assert row is not None
    folder = Path(row["folder"])
    parts = [folder / "base" / str(row["oid"]), folder / "pg_wal"]
    return b"".join(path.read_bytes() for part in parts for path in part.rglob("*") if path.is_file())


async def test_a_secret_is_found_nowhere_but_in_its_envelope(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    names = ("access_token", "refresh_token", "client_secret", "token", "secret_value", "rotated", "refused")
    secrets = {name: secret(name) for name in names}
    with structlog.testing.capture_logs() as lines:
        async with ScriptedModel() as model, watched(database_url, model) as at:
            vault = await at.send("POST", "/v1/vaults", {"display_name": "V"})
            path = f"/v1/vaults/{vault['id']}/credentials"
            first = await at.send("POST", path, {"auth": oauth(secrets)})
            second = await at.send("POST", path, {"auth": bearer(secrets["token"])})
            await at.send("POST", path, {"auth": variable(secrets["secret_value"])})
            change = {"auth": {"type": "static_bearer", "token": secrets["rotated"]}}
            await at.send("POST", f"{path}/{second['id']}", change)
            for where in ("", f"/{first['id']}", "?include_archived=true"):
                await at.send("GET", path + where)
            await at.send("POST", f"{path}/{first['id']}/mcp_oauth_validate", status=400)
            await refused_requests(at, path, secrets["refused"])
            session = await at.corral.session(vault_ids=[vault["id"]])
            await session.says("hello")
            await session.idle()
            events = [event.to_json().encode() for event in await session.events()]
            stored = await everything_in_the_database(at.corral.database)
            await at.send("POST", f"{path}/{first['id']}/archive")
            pages = await files_of_the_database(at.corral.database)
            seen = at.seen
    logs = repr(lines).encode() + caplog.text.encode()
    assert b"request refused" in logs
    assert first["id"].encode() in stored
    assert first["id"].encode() in pages
    places = {
        "answers": b"".join(seen),
        "logs": logs,
        "events": b"".join(events),
        "rows": stored,
        "pages": pages,
    }
    for name, text in secrets.items():
        for form in forms(text):
            for place, content in places.items():
                assert form not in content, f"{name} is in the {place} as {form!r}"


async def refused_requests(at: Watched, path: str, text: str) -> None:
    """Every way to have a request with a secret refused."""
    good = bearer(text, "new.example.com")
    for auth in (
        bearer(text),  # the server has one already
        bearer(text * 300, "new.example.com"),
        bearer(text + "\x00", "new.example.com"),
        bearer([text], "new.example.com"),
        bearer({"value": text}, "new.example.com"),
        {**good, "mcp_server_url": f"https://user:{text}@mcp.example.com/"},
        {**good, "mcp_server_url": text},
        {**good, "scope": text},
        {**good, "type": "mcp_oauth"},
        {**variable(text), "secret_name": "not a name"},
        {**variable(text), "injection_location": {"header": False}},
        {
            **oauth(dict.fromkeys(("access_token", "refresh_token", "client_secret"), text)),
            "expires_at": text,
        },
    ):
        duplicate = auth == bearer(text)
        await at.send("POST", path, {"auth": auth}, status=409 if duplicate else 400)
    await at.send("POST", path, {"auth": good, "metadata": {"k": [text]}}, status=400)
    await at.send("POST", path, {"auth": text}, status=400)
    broken = msgspec.json.encode({"auth": good})
    await at.send("POST", path, broken[:-1], status=400)
    await at.send(
        "POST", path, broken.replace(b'"token"', b'"token":"' + text.encode() + b'","token"'), status=400
    )
    lone = broken.replace(text.encode(), text[:-1].encode() + b"\\ud800")
    await at.send("POST", path, lone, status=400)


async def test_what_the_attacker_writes_to_the_database_is_noticed(database_url: str) -> None:
    async with ScriptedModel() as model, watched(database_url, model) as at:
        database, ring = at.corral.database, key_ring(KEY)
        vault = await at.send("POST", "/v1/vaults", {"display_name": "V"})
        path = f"/v1/vaults/{vault['id']}/credentials"
        mine, yours = secret("mine"), secret("yours")
        one = (await at.send("POST", path, {"auth": bearer(mine, "evil.example.com")}))["id"]
        other = (await at.send("POST", path, {"auth": bearer(yours)}))["id"]
        assert (await rows.read(database, other, ring))["token"].reveal() == yours
        # His own credential, for his own server, with the envelope of another.
        await database.execute(
            "update vault_secrets s set sealed = (select sealed from vault_secrets where credential_id ="
            " case s.credential_id when %(one)s then %(other)s else %(one)s end)",
            {"one": one, "other": other},
        )
        for credential_id in (one, other):
            with pytest.raises(CannotOpen, match=credential_id) as caught:
                await rows.read(database, credential_id, ring)
            assert mine not in str(caught.value)
            assert yours not in str(caught.value)


async def test_another_gateways_key_opens_nothing(database_url: str) -> None:
    async with ScriptedModel() as model, watched(database_url, model) as at:
        vault = await at.send("POST", "/v1/vaults", {"display_name": "V"})
        path = f"/v1/vaults/{vault['id']}/credentials"
        made = await at.send("POST", path, {"auth": bearer(secret("token"))})
        with pytest.raises(CannotOpen, match=KEY.public.id):
            await rows.read(at.corral.database, made["id"], key_ring(PrivateKey.generate()))
        assert await rows.key_ids(at.corral.database) == {KEY.public.id: 1}


async def test_a_secret_of_any_characters_comes_out_as_it_went_in(database_url: str) -> None:
    async with ScriptedModel() as model, watched(database_url, model) as at:
        vault = await at.send("POST", "/v1/vaults", {"display_name": "V"})
        path = f"/v1/vaults/{vault['id']}/credentials"
        for number, text in enumerate((" ", "\n\t\x01\x7f", "密钥🔑", "\u202e'\"\\;--", "ü" * 8192)):
            made = await at.send("POST", path, {"auth": bearer(text, f"h{number}.example.com")})
            assert (await rows.read(at.corral.database, made["id"], key_ring(KEY)))["token"].reveal() == text


async def test_the_server_says_so_when_its_key_is_not_the_one_that_secrets_are_sealed_for(
    database_url: str,
) -> None:
    async with ScriptedModel() as model:
        async with watched(database_url, model) as at:
            vault = await at.send("POST", "/v1/vaults", {"display_name": "V"})
            await at.send("POST", f"/v1/vaults/{vault['id']}/credentials", {"auth": bearer(secret("token"))})
        other = PrivateKey.generate().public
        settings = Settings(
            inference=Inference(provider="gateway", base_url=model.base_url),
            vault=VaultSettings(public_key=other.text),
        )
        with structlog.testing.capture_logs() as lines:
            async with running_corral(database_url, model, settings=settings):
                pass
        (line,) = [line for line in lines if "another key opens" in line["event"]]
        assert (line["sealing_with"], line["secrets_by_key"]) == (other.id, {KEY.public.id: 1})
