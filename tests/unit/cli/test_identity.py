"""`corral admin identity`: what MCP servers check agents' tokens with."""

import json

import pytest
from click.testing import CliRunner

from corral.cli import main
from corral.vault.keys import PrivateKey

KEY = PrivateKey.generate()


@pytest.mark.usefixtures("_logging_as_before")
def test_the_keys_are_exported_without_anything_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    former = PrivateKey.generate()
    monkeypatch.setenv("CORRAL_VAULT__KEY", KEY.text.reveal())
    monkeypatch.setenv("CORRAL_VAULT__FORMER_KEYS", former.text.reveal())
    result = CliRunner().invoke(main, ["admin", "identity", "export", "--json"])
    exported = json.loads(result.stdout)["keys"]
    assert [key["kid"] for key in exported] == [KEY.public.id, former.public.id]
    for key in exported:
        assert set(key) == {"kty", "crv", "x", "y", "kid", "alg", "use"}
        assert (key["kty"], key["crv"], key["alg"]) == ("EC", "P-256", "ES256")
