"""Settings of a secret manager: what each kind needs is told before anything starts."""

import sys

import pytest

from corral.settings import SecretManager
from corral.wire.secret import Secret


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (SecretManager(), []),
        (SecretManager(kind="hashicorp"), ["address", "token"]),
        (SecretManager(kind="hashicorp", address="https://v", token_file="/t"), []),
        (SecretManager(kind="hashicorp", address="https://v", token=Secret("t")), []),
        (SecretManager(kind="aws"), ["region"]),
        (SecretManager(kind="aws", region="eu-central-1"), []),
        (SecretManager(kind="google"), ["project"]),
        (SecretManager(kind="google", project="p"), []),
        (SecretManager(kind="azure"), ["address"]),
        (SecretManager(kind="azure", address="https://v"), []),
    ],
)
def test_what_a_manager_needs_is_asked_for(given: SecretManager, wrong: list[str]) -> None:
    assert [key for key, _ in given.conflicts()] == wrong


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    [(key, message)] = SecretManager(kind="aws", region="r").conflicts()
    assert key == "kind"
    assert "corral[aws]" in message
