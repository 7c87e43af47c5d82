"""Each secret manager against a server that speaks as the real one does; OpenBao is a real one."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from corral.server import listen, serving
from corral.vault.backends.aws import AwsSecretsManager
from corral.vault.backends.azure import AzureKeyVault
from corral.vault.backends.backend import BackendFailed, SecretBackend
from corral.vault.backends.google import GoogleSecretManager
from corral.vault.backends.hashicorp import HashicorpVault, token_in
from corral.vault.sealing import Place
from corral.wire.secret import Secret
from tests.secret_managers import AzureDouble, Bao, GoogleDouble, aws, google_account, openbao

PLACE = Place("vcrd_01abc", "token")
SECRET = Secret("hush — 秘密 \x00 \N{BAT}")


def in_bao(bao: Bao, token: str, address: str | None = None) -> HashicorpVault:
    return HashicorpVault(
        address or bao.address, lambda: Secret(token), mount="secret", prefix="corral", namespace=None
    )


async def written(manager: SecretBackend, secret: Secret) -> str:
    lies = manager.fresh(PLACE)
    await manager.write(lies, secret)
    return lies


async def keeps_and_removes(manager: SecretBackend) -> None:
    """What every manager promises."""
    first = await written(manager, SECRET)
    second = await written(manager, Secret("another"))
    assert first != second
    assert (await manager.read(first), await manager.read(second)) == (SECRET, Secret("another"))
    await manager.remove(first)
    with pytest.raises(BackendFailed) as gone:
        await manager.read(first)
    assert gone.value.lasting
    assert await manager.read(second) == Secret("another")
    await manager.remove(second)
    await manager.remove(second)
    await manager.close()


async def test_a_vault_server_keeps_secrets() -> None:
    async with openbao() as bao:
        server = await bao.token(
            ("secret/data/corral/*", ["create", "update"]), ("secret/metadata/corral/*", ["delete"])
        )
        gateway = await bao.token(
            ("secret/data/corral/*", ["create", "read"]), ("secret/metadata/corral/*", ["delete"])
        )
        await keeps_and_removes(in_bao(bao, gateway))
        assert await bao.kept("corral/vcrd_01abc") == []

        writer = in_bao(bao, server)
        lies = await written(writer, SECRET)
        assert lies.startswith("corral/vcrd_01abc/token/")
        with pytest.raises(BackendFailed) as refused:
            await writer.read(lies)
        assert "read" in str(refused.value)
        reader = in_bao(bao, gateway)
        assert await reader.read(lies) == SECRET
        await writer.close()
        await reader.close()


async def test_a_vault_token_that_is_no_good_is_told_apart_from_a_server_that_is_away(tmp_path: Path) -> None:
    async with openbao() as bao:
        expired = in_bao(bao, "expired")
        with pytest.raises(BackendFailed) as refused:
            await written(expired, SECRET)
        assert refused.value.lasting
        assert "token is valid" in str(refused.value)
        assert "hush" not in str(refused.value)
        await expired.close()

        kept = tmp_path / "token"
        fresh = HashicorpVault(bao.address, token_in(kept), mount="secret", prefix="corral", namespace=None)
        with pytest.raises(BackendFailed) as missing:
            await written(fresh, SECRET)
        assert str(kept) in str(missing.value)
        kept.write_text("expired\n")
        with pytest.raises(BackendFailed):
            await written(fresh, SECRET)
        kept.write_text(await bao.token(("secret/data/corral/*", ["create", "read"])))
        assert await fresh.read(await written(fresh, SECRET)) == SECRET
        await fresh.close()
        address = bao.address
    away = in_bao(bao, "any", address)
    with pytest.raises(BackendFailed) as unreachable:
        await away.read("corral/x")
    assert not unreachable.value.lasting
    await away.close()


async def test_aws_keeps_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    async with aws() as address:
        await keeps_and_removes(AwsSecretsManager("eu-central-1", prefix="corral", address=address))


async def test_aws_without_a_credential_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    manager = AwsSecretsManager("eu-central-1", prefix="corral", address="http://127.0.0.1:9")
    with pytest.raises(BackendFailed, match="AWS_ACCESS_KEY_ID"):
        await manager.read("corral/x")
    await manager.close()


@asynccontextmanager
async def google(
    double: GoogleDouble, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> AsyncGenerator[GoogleSecretManager]:
    async with serving(double.app(), listen("127.0.0.1", 0)) as address:
        account = folder / "account.json"
        account.write_text(json.dumps(google_account(f"{address}/token")))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account))
        manager = GoogleSecretManager("corral-test", prefix="corral", address=address)
        yield manager
        await manager.close()


async def test_google_keeps_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    double = GoogleDouble()
    async with google(double, monkeypatch, tmp_path) as manager:
        await keeps_and_removes(manager)
    assert double.secrets == {}


async def test_a_secret_that_google_takes_no_value_for_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    double = GoogleDouble(adding_fails=True)
    async with google(double, monkeypatch, tmp_path) as manager:
        with pytest.raises(BackendFailed, match=r"versions\.add"):
            await written(manager, SECRET)
    assert double.secrets == {}


@pytest.mark.parametrize("protected", [False, True])
async def test_azure_keeps_secrets(monkeypatch: pytest.MonkeyPatch, protected: bool) -> None:
    double = AzureDouble(purge_protected=protected)
    async with serving(double.app(), listen("127.0.0.1", 0)) as address:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", address)
        for name in ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"):
            monkeypatch.delenv(name, raising=False)
        await keeps_and_removes(AzureKeyVault(address, prefix="corral"))
    assert double.secrets == {}
    assert len(double.deleted) == (2 if protected else 0)
