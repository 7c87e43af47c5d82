"""The vault's keys are replaced while secrets are entered and used: nothing is lost."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.vault import rotation, rows
from corral.vault.keeping import Keeping
from corral.vault.keys import PrivateKey
from corral.vault.sealing import CannotOpen, key_ring
from corral.wire.secret import Secret
from tests.e2e.conftest import model as model
from tests.e2e.mcp_house import KEY, calls, last_message, mcp_house
from tests.mcp_parts import mcp_server, token_endpoint
from tests.unit.cli.test_up import corral_up
from tests.unit.cli.test_up import data_dir as data_dir

NEW = PrivateKey.generate()
BOTH = key_ring(NEW, KEY)


async def credentials(database: Database, count: int) -> None:
    """Vault credentials with two secrets each, sealed for the old key."""
    await database.execute("insert into vaults (id, display_name) values ('vlt_1', 'V')")
    for n in range(count):
        await database.execute(
            "insert into vault_credentials (id, vault_id, auth, key_hash)"
            " values (%s, 'vlt_1', '{}', sha256(%s::bytea))",
            (f"vcrd_{n}", str(n).encode()),
        )
        async with database.transaction() as connection:
            secrets: Any = {"access_token": Secret(f"a{n}"), "refresh_token": Secret(f"r{n}")}
            await Keeping(KEY.public).keep(connection, f"vcrd_{n}", secrets)


async def test_everything_is_wrapped_for_the_new_key_and_opens_with_it_alone(database: Database) -> None:
    await credentials(database, 130)
    assert await rotation.rewrap_all(database, BOTH, NEW.public) == 260
    assert await rows.key_ids(database) == {NEW.public.id: 260}
    for n in (0, 64, 129):
        opened = await rows.read(database, f"vcrd_{n}", key_ring(NEW))
        assert {name: secret.reveal() for name, secret in opened.items()} == {
            "access_token": f"a{n}",
            "refresh_token": f"r{n}",
        }
    with pytest.raises(CannotOpen):
        await rows.read(database, "vcrd_0", key_ring(KEY))
    assert await rotation.rewrap_all(database, BOTH, NEW.public) == 0


async def test_secrets_that_are_entered_meanwhile_are_never_written_over(database: Database) -> None:
    await credentials(database, 120)

    async def enter(n: int) -> None:
        async with database.transaction() as connection:
            await Keeping(KEY.public).keep(connection, f"vcrd_{n}", {"access_token": Secret(f"new{n}")})

    async def use(n: int) -> None:
        opened = await rows.read(database, f"vcrd_{n}", BOTH)
        assert opened["refresh_token"].reveal() == f"r{n}"

    entering = [enter(n) for n in range(0, 120, 3)]
    using = [use(n) for n in range(120)]
    rotating = [rotation.rewrap_all(database, BOTH, NEW.public) for _ in range(2)]
    await asyncio.gather(*rotating, *entering, *using)
    for n in range(0, 120, 3):
        opened = await rows.read(database, f"vcrd_{n}", BOTH)
        assert opened["access_token"].reveal() == f"new{n}"
    await rotation.rewrap_all(database, BOTH, NEW.public)
    assert await rotation.left(database, NEW.public.id) == 0


async def test_a_missing_key_stops_it_and_what_was_done_stays(database: Database) -> None:
    await credentials(database, 2)
    with pytest.raises(CannotOpen, match=KEY.public.id):
        await rotation.rewrap_all(database, key_ring(NEW), NEW.public)
    assert await rotation.left(database, NEW.public.id) == 4
    assert await rotation.forget(database, KEY.public.id) == 4
    assert await rows.key_ids(database) == {}


async def test_a_session_goes_on_calling_while_the_keys_are_replaced(
    database_url: str, model: ScriptedModel
) -> None:
    bearer = {"type": "static_bearer", "token": "bearer-hunter2"}
    async with mcp_house(database_url, model, accepted=["bearer-hunter2"], former=[NEW]) as house:
        session = await house.session(vault_ids=[await house.vault(bearer)])
        steps = [calls("add", a=n, b=n) for n in range(6)]
        await session.says("go", script=[*steps, {"text": "they said: {result}"}])
        ring = key_ring(NEW, KEY)
        for present in (NEW, KEY, NEW):
            await rotation.rewrap_all(house.corral.database, ring, present.public)
        await session.idle()
        assert await last_message(session) == "they said: 10"
        assert await session.events(types=["session.error"]) == []


async def admin(*arguments: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "corral.cli", "admin", *arguments, "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return dict(json.loads(output))


async def test_the_keys_of_up_are_replaced_while_it_runs_and_it_goes_on_opening(data_dir: Path) -> None:
    async with mcp_server(accepted=["old-hunter2"]) as server, token_endpoint(server) as endpoint:
        variables = {"CORRAL_GATEWAY__INTERNAL": '["127.0.0.0/8"]'}
        auth = {
            "type": "mcp_oauth",
            "access_token": "old-hunter2",
            "mcp_server_url": server.url,
            "refresh": {
                "client_id": "client",
                "refresh_token": endpoint.refresh_token,
                "token_endpoint": endpoint.url,
                "token_endpoint_auth": {"type": "none"},
            },
        }
        async with corral_up(data_dir, **variables) as up:
            async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers, timeout=60) as http:
                vault = (await http.post("/v1/vaults", json={"display_name": "V"})).json()
                path = f"/v1/vaults/{vault['id']}/credentials"
                made = (await http.post(path, json={"auth": auth})).json()
                path = f"{path}/{made['id']}/mcp_oauth_validate"
                assert (await http.post(path, json={})).json()["status"] == "valid"
                rotated = await admin("rotate-keys", "--data", str(data_dir), "--new")
                assert (rotated["rewrapped"] >= 2, rotated["left"]) == (True, 0)
                assert (await http.post(path, json={})).json()["status"] == "valid"
                assert (data_dir / "vault" / "former.key").exists()
            await up.stop()
        async with corral_up(data_dir, **variables) as up:
            rotated = await admin("rotate-keys", "--data", str(data_dir))
            assert rotated["left"] == 0
            assert not (data_dir / "vault" / "former.key").exists()
            async with httpx.AsyncClient(base_url=up.base_url, headers=up.headers, timeout=60) as http:
                assert (await http.post(path, json={})).json()["status"] == "valid"
            await up.stop()
