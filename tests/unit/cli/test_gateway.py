"""`corral gateway` as a process, and the one that `corral up` runs."""

import asyncio
import json
import os
import signal
import sys
from base64 import urlsafe_b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from corral.store.database import Database
from corral.vault.keeping import Keeping
from corral.vault.keys import PrivateKey, PublicKey
from corral.wire.secret import Secret
from tests.processes import command_line
from tests.unit.cli.test_up import Up, corral_up
from tests.unit.cli.test_up import data_dir as data_dir

START_SECONDS = 60.0
KEY = PrivateKey.generate()
OAUTH: dict[str, Any] = {
    "type": "mcp_oauth",
    "access_token": "hunter2-access",
    "mcp_server_url": "http://127.0.0.1:9/mcp",
}


async def begun(**variables: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "corral.cli", "gateway", "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "CORRAL_GATEWAY__PORT": "0", **variables},
    )


@asynccontextmanager
async def gateway(**variables: str) -> AsyncGenerator[str]:
    """A running gateway's address."""
    process = await begun(**variables)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = await process.stdout.readline()
        assert line, (await process.communicate())[1].decode()
        yield str(json.loads(line)["url"])
    finally:
        process.terminate()
        async with asyncio.timeout(20):
            await process.communicate()
        assert process.returncode == 0


async def refusal(**variables: str) -> tuple[int | None, str]:
    process = await begun(**variables)
    async with asyncio.timeout(START_SECONDS):
        _, errors = await process.communicate()
    return process.returncode, errors.decode()


async def seal_one(database: Database, key: PublicKey = KEY.public) -> None:
    await database.execute("insert into vaults (id, display_name) values ('vlt_1', 'V')")
    await database.execute(
        "insert into vault_credentials (id, vault_id, auth, key_hash)"
        " values ('vcrd_1', 'vlt_1', '{}', '\\x00')"
    )
    async with database.transaction() as connection:
        await Keeping(key).keep(connection, "vcrd_1", {"token": Secret("hunter2")})


async def test_it_serves_its_health_and_nothing_without_a_grant(database: Database) -> None:
    await seal_one(database)
    async with gateway(CORRAL_STORE__URL=database.url, CORRAL_VAULT__KEY=KEY.text.reveal()) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/healthz")).json() == {"status": "ok"}
            for path in ("validate", "mcp/tools", "mcp/call", "mcp/cancel"):
                for headers in ({}, {"authorization": "Bearer corral_gg_guess"}):
                    answer = await http.post(f"/corral/gateway/v1/{path}", json={}, headers=headers)
                    assert (answer.status_code, answer.json()["error"]["type"]) == (
                        401,
                        "authentication_error",
                    )


async def test_without_a_key_it_does_not_start_and_says_what_to_do(database: Database) -> None:
    status, errors = await refusal(CORRAL_STORE__URL=database.url)
    assert status == 78
    assert "CORRAL_VAULT__KEY is not set" in errors
    assert "corral admin vault-key create" in errors


async def test_with_a_wrong_key_it_does_not_start_and_names_the_one_that_is_wanted(
    database: Database,
) -> None:
    await seal_one(database)
    wrong = PrivateKey.generate()
    status, errors = await refusal(CORRAL_STORE__URL=database.url, CORRAL_VAULT__KEY=wrong.text.reveal())
    assert status == 78
    assert f"1 for key {KEY.public.id}; at hand: {wrong.public.id}" in errors
    assert "CORRAL_VAULT__FORMER_KEYS" in errors
    assert wrong.text.reveal() not in errors


async def test_former_keys_open_what_they_sealed(database: Database) -> None:
    await seal_one(database)
    new, other = PrivateKey.generate(), PrivateKey.generate()
    former = f"{other.text.reveal()}, {KEY.text.reveal()}"
    async with gateway(
        CORRAL_STORE__URL=database.url,
        CORRAL_VAULT__KEY=new.text.reveal(),
        CORRAL_VAULT__FORMER_KEYS=former,
    ) as url:
        assert url


async def test_a_damaged_key_is_told_without_showing_it(database: Database) -> None:
    damaged = KEY.text.reveal()[:-4] + "AAAA"
    status, errors = await refusal(CORRAL_STORE__URL=database.url, CORRAL_VAULT__KEY=damaged)
    assert status == 1
    assert "vault.key" in errors
    assert "damaged" in errors
    assert damaged not in errors


async def test_without_a_database_it_says_so() -> None:
    status, errors = await refusal(CORRAL_VAULT__KEY=KEY.text.reveal())
    assert status == 1
    assert "CORRAL_STORE__URL" in errors


def gateway_of(up: Up) -> int:
    return next(pid for pid in up.children() if b"corral.cli\0gateway" in command_line(pid))


async def validated(up: Up) -> dict[str, Any]:
    """What a validation says of a credential whose server is away: it takes the gateway to say that."""
    async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers, timeout=60) as client:
        vault = (await client.post("/v1/vaults", json={"display_name": "V"})).json()
        path = f"/v1/vaults/{vault['id']}/credentials"
        made = (await client.post(path, json={"auth": OAUTH})).json()
        answer = await client.post(f"{path}/{made['id']}/mcp_oauth_validate", json={})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


async def test_the_one_of_up_opens_what_the_server_has_sealed_and_is_started_again(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        assert (await validated(up))["status"] == "unknown"
        first = gateway_of(up)
        os.kill(first, signal.SIGKILL)
        await up.says("the gateway ended; starting it again")
        assert (await validated(up))["status"] == "unknown"
        assert gateway_of(up) != first
        await up.stop()


async def test_only_the_gateway_of_up_has_the_private_key(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        await validated(up)
        key = (data_dir / "vault" / "private.key").read_text().strip()
        raw = urlsafe_b64decode(key.removeprefix("corral_vk_"))[:32]
        assert raw in memory(gateway_of(up)), "or this test would show nothing"
        for pid in {up.process.pid, up.worker()}:
            assert raw not in memory(pid)
            assert key.encode() not in memory(pid)
            assert key.encode() not in Path(f"/proc/{pid}/environ").read_bytes()


async def test_without_its_key_the_gateway_stays_away_and_the_rest_runs(data_dir: Path) -> None:
    async with corral_up(data_dir) as up:
        await up.stop()
    private = data_dir / "vault" / "private.key"
    private.write_text("corral_vk_AAAA\n")
    async with corral_up(data_dir) as up:
        await up.says("the gateway cannot start")
        async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers) as client:
            assert (await client.get("/v1/environments")).status_code == 200
        await up.stop()


def memory(pid: int) -> bytes:
    """Everything that a process could read of itself now."""
    found = bytearray()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, rights, *_ = line.split()
            if "r" not in rights or "w" not in rights:
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            try:
                mem.seek(begin)
                found += mem.read(end - begin)
            except (OSError, ValueError, OverflowError):
                continue
    return bytes(found)
