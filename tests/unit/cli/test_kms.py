"""A KMS that encrypts the vault's private key: OpenBao's transit engine, and moto's AWS KMS."""

import asyncio
import json
import os
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from corral.cli import main
from corral.gateway.key_services import open_key_service
from corral.gateway.keyring import Keys, KeyTrouble
from corral.settings import SettingsError, Vault, load_settings
from corral.store.database import Database
from corral.vault import rows
from corral.vault.backends.aws import AwsService
from corral.vault.backends.backend import BackendFailed
from corral.vault.keys import PRIVATE_PREFIX, PrivateKey, PublicKey
from corral.wire.secret import Secret
from tests.secret_managers import Bao, aws, openbao
from tests.unit.cli.test_gateway import KEY, gateway, refusal, seal_one

ENCRYPTS = ("transit/encrypt/corral", ["update"])
DECRYPTS = ("transit/decrypt/corral", ["update"])


@dataclass(frozen=True)
class Kms:
    """An OpenBao with two keys, `corral` and `other`, in its transit engine."""

    bao: Bao
    decrypting: str
    """A token for the gateway."""

    def variables(self, **changed: str) -> dict[str, str]:
        """The gateway's settings."""
        settings = {
            "kms": "hashicorp",
            "kms_address": self.bao.address,
            "kms_key": "corral",
            "kms_token": self.decrypting,
            **changed,
        }
        return {f"CORRAL_VAULT__{name.upper()}": value for name, value in settings.items()}

    def vault(self, **changed: str) -> Vault:
        """The same, read."""
        return load_settings(None, self.variables(**changed)).vault

    async def encrypted(self, text: str, key: str = "corral") -> str:
        """A ciphertext that the engine makes with the test's own token."""
        body = {"plaintext": b64encode(text.encode()).decode()}
        answer = await self.bao.ask("POST", f"transit/encrypt/{key}", body=body)
        return answer.json()["data"]["ciphertext"]


@asynccontextmanager
async def transit() -> AsyncGenerator[Kms]:
    async with openbao() as bao:
        made = await bao.ask("POST", "sys/mounts/transit", body={"type": "transit"})
        assert made.is_success, made.text
        for name in ("corral", "other"):
            assert (await bao.ask("POST", f"transit/keys/{name}", body={})).is_success
        yield Kms(bao, await bao.token(DECRYPTS))


async def command(*arguments: str, **variables: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "corral.cli", "admin", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
    )
    said, errors = await process.communicate()
    return process.returncode, said.decode(), errors.decode()


async def made(**variables: str) -> dict[str, str]:
    """What `corral admin vault-key create --kms` prints, in which there is no private key."""
    status, said, errors = await command("vault-key", "create", "--kms", "--json", **variables)
    assert status == 0, errors
    assert PRIVATE_PREFIX not in said + errors
    return json.loads(said)


async def trouble(vault: Vault) -> str:
    """Why the keys of these settings cannot be had; a text without a secret, and with advice."""
    with pytest.raises(KeyTrouble) as caught:
        await Keys.of_settings(vault)
    told = f"{caught.value} {caught.value.advice}"
    for secret in (vault.key, vault.kms_token):
        assert secret is None or secret.reveal() not in told
    assert KEY.text.reveal() not in told
    assert "vault.kms_key" in told
    return told


async def opens(keys: Keys, database: Database) -> None:
    """The one secret of the database is opened."""
    read = await rows.read(database, "vcrd_1", keys.ring)
    assert read["token"] == Secret("hunter2")


async def test_a_gateway_has_its_key_decrypted_by_a_vault_server(database: Database) -> None:
    async with transit() as kms:
        pair = await made(**kms.variables(kms_token=await kms.bao.token(ENCRYPTS)))
        assert pair["key"].startswith("vault:v1:")
        await seal_one(database, PublicKey.parse(pair["public_key"]))
        keys = {"key": pair["key"], "public_key": pair["public_key"]}
        await opens(await Keys.of_settings(kms.vault(**keys)), database)
        async with gateway(CORRAL_STORE__URL=database.url, **kms.variables(**keys)) as url:
            assert url
        status, said, errors = await command("identity", "export", **kms.variables(**keys))
        assert status == 0, errors
        assert len(json.loads(said)["keys"]) == 1


async def test_the_token_may_be_in_a_file(tmp_path: Path) -> None:
    async with transit() as kms:
        token = tmp_path / "token"
        ciphertext = await kms.encrypted(KEY.text.reveal())
        vault = kms.vault(key=ciphertext, kms_token_file=str(token))
        vault = structs.replace(vault, kms_token=None)
        assert str(token) in await trouble(vault)
        token.write_text(kms.decrypting + "\n")
        assert (await Keys.of_settings(vault)).present.public.id == KEY.public.id


async def test_the_ciphertext_alone_opens_nothing(database: Database) -> None:
    await seal_one(database)
    async with transit() as kms:
        ciphertext = await kms.encrypted(KEY.text.reveal())
        with pytest.raises(SettingsError, match=r"vault\.key"):
            load_settings(None, {"CORRAL_VAULT__KEY": ciphertext})
        encrypting = await kms.bao.token(ENCRYPTS)
        told = await trouble(kms.vault(key=ciphertext, kms_token=encrypting))
        assert "403" in told
        assert "its policy allows update" in told
        variables = kms.variables(key=ciphertext, kms_token=encrypting)
        status, errors = await refusal(CORRAL_STORE__URL=database.url, **variables)
        assert status == 78
        assert "does not decrypt CORRAL_VAULT__KEY" in errors
        assert ciphertext not in errors
        assert encrypting not in errors
        address = kms.bao.address
        vault = kms.vault(key=ciphertext)
    assert address == vault.kms_address
    assert "cannot be reached" in await trouble(vault)


async def test_what_is_no_ciphertext_of_a_key_is_told() -> None:
    async with transit() as kms:
        everything = await kms.bao.token(DECRYPTS, ("transit/decrypt/*", ["update"]))
        key = await kms.encrypted(KEY.text.reveal())
        assert "400" in await trouble(kms.vault(key=key[:-8] + "AAAAAAA="))
        assert "400" in await trouble(kms.vault(key="nonsense"))
        for other in ("other", "missing"):
            assert "400" in await trouble(kms.vault(key=key, kms_key=other, kms_token=everything))
        text = await kms.encrypted("a text that is no key")
        assert "must be a private vault key" in await trouble(kms.vault(key=text))
        half = await kms.encrypted(KEY.public.text)
        assert "public half" in await trouble(kms.vault(key=half))
        body = {"plaintext": b64encode(b"\xff\xfe").decode()}
        answer = await kms.bao.ask("POST", "transit/encrypt/corral", body=body)
        assert "not text" in await trouble(kms.vault(key=answer.json()["data"]["ciphertext"]))
        with pytest.raises(KeyTrouble, match="not the other half"):
            await Keys.of_settings(kms.vault(key=key, public_key=PrivateKey.generate().public.text))
        with pytest.raises(KeyTrouble, match="FORMER_KEYS"):
            await Keys.of_settings(kms.vault(key=key, former_keys="vault:v1:AAAA"))
        with pytest.raises(KeyTrouble, match="FORMER_KEYS is damaged"):
            await Keys.of_settings(kms.vault(key=key, former_keys=KEY.text.reveal()[:-4]))


async def test_rotation_moves_to_a_kms_and_from_one_ciphertext_to_the_next(database: Database) -> None:
    await seal_one(database)
    async with transit() as kms:
        encrypting = kms.variables(kms_token=await kms.bao.token(ENCRYPTS))
        former = KEY.text.reveal()
        for _ in range(2):
            pair = await made(**encrypting)
            variables = kms.variables(key=pair["key"], former_keys=former)
            status, said, errors = await command(
                "rotate-keys", "--json", CORRAL_STORE__URL=database.url, **variables
            )
            assert status == 0, errors
            assert json.loads(said) == {"key": pair["id"], "rewrapped": 1, "left": 0}
            await opens(await Keys.of_settings(kms.vault(key=pair["key"])), database)
            former = pair["key"]


async def test_a_gateway_has_its_key_decrypted_by_aws(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    async with aws() as address:
        service = AwsService("AWS KMS", "kms", "TrentService", "eu-central-1", address)
        arns = [(await service.ask("CreateKey", {}, "*"))["KeyMetadata"]["Arn"] for _ in range(2)]
        await service.close()

        def variables(**changed: str) -> dict[str, str]:
            settings = {
                "kms": "aws",
                "kms_address": address,
                "kms_region": "eu-central-1",
                "kms_key": arns[0],
                **changed,
            }
            return {f"CORRAL_VAULT__{name.upper()}": value for name, value in settings.items()}

        def vault(**changed: str) -> Vault:
            return load_settings(None, variables(**changed)).vault

        pair = await made(**variables())
        await seal_one(database, PublicKey.parse(pair["public_key"]))
        await opens(await Keys.of_settings(vault(key=pair["key"])), database)
        async with gateway(CORRAL_STORE__URL=database.url, **variables(key=pair["key"])) as url:
            assert url
        assert f"kms:Decrypt on {arns[1]}" in await trouble(vault(key=pair["key"], kms_key=arns[1]))
        assert "AWS KMS" in await trouble(vault(key=b64encode(b"x" * 99).decode()))
        async with open_key_service(vault(kms_key="arn:aws:kms:eu-central-1:1:key/none")) as service:
            with pytest.raises(BackendFailed, match="kms:Encrypt"):
                await service.encrypt(KEY.text)


@pytest.mark.parametrize(
    ("variables", "key", "words"),
    [
        ({"kms": "hashicorp", "kms_address": "http://127.0.0.1:9"}, "vault.kms_key", "is needed"),
        ({"kms": "hashicorp", "kms_key": "corral"}, "vault.kms_address", "is needed"),
        ({"kms": "aws", "kms_key": "corral"}, "vault.kms_region", "is needed"),
        (
            {"kms": "hashicorp", "kms_address": "http://a", "kms_key": "c", "key": "vault:v1:A"},
            "vault.kms_token",
            "or set kms_token_file",
        ),
        (
            {"kms": "aws", "kms_region": "r", "kms_key": "c", "key": KEY.text.reveal()},
            "vault.key",
            "is not encrypted",
        ),
    ],
)
def test_what_a_kms_needs_is_told(variables: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings(None, {f"CORRAL_VAULT__{name.upper()}": value for name, value in variables.items()})
    assert words in dict(error.value.problems)[key]
    assert KEY.text.reveal() not in str(error.value)


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "No KMS is set"),
        ({"KMS": "hashicorp", "KMS_KEY": "c", "KMS_ADDRESS": "http://127.0.0.1:9"}, "KMS_TOKEN"),
        (
            {
                "KMS": "hashicorp",
                "KMS_KEY": "c",
                "KMS_ADDRESS": "http://127.0.0.1:9",
                "KMS_TOKEN": "hvs.hunter2",
            },
            "cannot be reached",
        ),
    ],
)
def test_a_pair_is_not_made_without_a_kms_that_encrypts_it(
    variables: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"CORRAL_VAULT__{name}", value)
    result = CliRunner().invoke(main, ["admin", "vault-key", "create", "--kms"])
    assert result.exit_code == 1
    assert words in result.stderr
    assert result.stdout == ""
    assert "hunter2" not in result.stderr


@pytest.mark.usefixtures("_logging_as_before")
def test_a_pair_for_a_kms_goes_into_no_folder(tmp_path: Path) -> None:
    into = str(tmp_path / "vault")
    result = CliRunner().invoke(main, ["admin", "vault-key", "create", "--kms", "--into", into])
    assert result.exit_code == 2
    assert not (tmp_path / "vault").exists()


@pytest.mark.usefixtures("_logging_as_before")
def test_a_server_does_not_start_with_the_kmss_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_VAULT__KMS_TOKEN", "hvs.hunter2")
    result = CliRunner().invoke(main, ["serve"])
    assert result.exit_code == 1
    assert "CORRAL_VAULT__KMS_TOKEN" in result.stderr
    assert "hunter2" not in result.output
