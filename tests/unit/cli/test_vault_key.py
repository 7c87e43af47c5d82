"""`corral admin vault-key`, and the keys that commands which serve the API are given or refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from corral.cli import main
from corral.cli.failure import Failure
from corral.cli.vault_key import kept_public_key
from corral.vault.keys import PrivateKey, PublicKey
from corral.wire.secret import Secret

pytestmark = pytest.mark.usefixtures("_logging_as_before")


def vault_key(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["admin", "vault-key", "create", *arguments])


def test_a_pair_is_printed_as_settings() -> None:
    result = vault_key()
    settings = dict(line.split("=", 1) for line in result.stdout.splitlines())
    public = PublicKey.parse(settings["CORRAL_VAULT__PUBLIC_KEY"])
    assert PrivateKey.parse(Secret(settings["CORRAL_VAULT__KEY"])).public.id == public.id
    assert "gateway alone" in result.stderr


def test_a_pair_is_printed_as_json() -> None:
    told = json.loads(vault_key("--json").stdout)
    assert PrivateKey.parse(Secret(told["key"])).public.text == told["public_key"]
    assert PublicKey.parse(told["public_key"]).id == told["id"]


def test_a_pair_is_put_into_a_private_folder_and_not_printed(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "vault"
    result = vault_key("--into", str(folder), "--json")
    assert set(json.loads(result.stdout)) == {"id", "public_key"}
    private = (folder / "private.key").read_text().strip()
    assert PrivateKey.parse(Secret(private)).public.text == (folder / "public.key").read_text().strip()
    assert private not in result.output
    for path in (folder, folder / "private.key", folder / "public.key"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_pair_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "vault"
    vault_key("--into", str(folder))
    before = (folder / "private.key").read_text()
    result = vault_key("--into", str(folder))
    assert result.exit_code == 1
    assert "never overwritten" in result.stderr
    assert (folder / "private.key").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["vault"]


async def test_a_data_folder_gets_one_pair_and_keeps_it(tmp_path: Path) -> None:
    first = await kept_public_key(tmp_path)
    assert await kept_public_key(tmp_path) == first


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("private.key", None, "nobody can read"),
        ("public.key", None, "public.key is missing"),
        ("public.key", "corral_vp_AAAA", "is damaged"),
        ("public.key", "private", "gateway alone"),
    ],
)
async def test_half_a_pair_is_told_with_what_to_do(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    await kept_public_key(tmp_path)
    path = tmp_path / "vault" / name
    private = (tmp_path / "vault" / "private.key").read_text()
    path.unlink()
    if content is not None:
        path.write_text(private if content == "private" else content)
    with pytest.raises(Failure, match=words) as caught:
        await kept_public_key(tmp_path)
    assert caught.value.advice is not None
    assert "put it back" in caught.value.advice
    assert private.strip() not in caught.value.message


@pytest.mark.parametrize("command", ["serve", "up"])
def test_what_serves_the_api_does_not_start_with_the_private_key(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = PrivateKey.generate().text.reveal()
    monkeypatch.setenv("CORRAL_VAULT__KEY", key)
    arguments = ["--data", str(tmp_path / "data")] if command == "up" else []
    result = CliRunner().invoke(main, [command, *arguments])
    assert result.exit_code == 1
    assert "CORRAL_VAULT__KEY" in result.stderr
    assert "gateway alone" in result.stderr
    assert key not in result.output
    assert not (tmp_path / "data").exists()
