"""The settings of webhooks: what is declared, and secrets that come from the environment alone."""

from pathlib import Path

import pytest

from corral.settings import SettingsError, load_settings
from corral.wire.webhook_signing import new_secret


def written(folder: Path, text: str) -> Path:
    path = folder / "corral.yaml"
    path.write_text(text)
    return path


def test_endpoints_are_declared_in_the_file_and_their_secrets_in_the_environment(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "webhooks:\n"
        "  endpoints:\n"
        "    - {name: ci, url: https://ci.example.com/, events: [agent.created]}\n"
        "    - {name: audit, url: https://audit.example.com/, events: [all]}\n"
        "  internal: [hooks.corp.example]\n",
    )
    one, two, three = (new_secret().reveal() for _ in range(3))
    given = load_settings(path, {"CORRAL_WEBHOOKS__SECRETS": f"ci={one}, audit={two},audit={three}"}).webhooks
    assert [endpoint.name for endpoint in given.endpoints] == ["ci", "audit"]
    found = {name: [one.reveal() for one in some] for name, some in given.secrets_by_name().items()}
    assert found == {"ci": [one], "audit": [two, three]}


def test_the_log_masks_each_of_the_secrets() -> None:
    one, two = new_secret(), new_secret()
    settings = load_settings(None, {"CORRAL_WEBHOOKS__SECRETS": f"ci={one.reveal()},audit={two.reveal()}"})
    assert {one, two} <= set(settings.secrets())


def test_a_secret_in_the_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, f"webhooks:\n  secrets: ci={new_secret().reveal()}\n")
    with pytest.raises(SettingsError, match=r"webhooks\.secrets: is a secret"):
        load_settings(path, {})


@pytest.mark.parametrize("text", ["whsec_abcdefghijkl==", "ci=", "ci=whsec_abcdefghijkl", "ci"])
def test_a_secret_that_is_none_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(SettingsError, match=r"webhooks\.secrets: must be name=whsec_") as caught:
        load_settings(None, {"CORRAL_WEBHOOKS__SECRETS": text})
    assert "abcdefghijkl" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{name: A B, url: u, events: [all]}", r"webhooks\.endpoints"),
        ("{name: a, url: u, events: []}", r"webhooks\.endpoints"),
        ("{name: a, url: u}", r"webhooks\.endpoints"),
        ("{name: a, url: u, events: [all], secret: s}", r"webhooks\.endpoints"),
        ("{name: a, url: u, events: [all]}, {name: a, url: v, events: [all]}", "the same name"),
    ],
)
def test_what_is_wrong_with_a_declared_endpoint_is_told(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, f"webhooks:\n  endpoints: [{text}]\n")
    with pytest.raises(SettingsError, match=message):
        load_settings(path, {})


def test_an_internal_host_that_names_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"webhooks\.internal"):
        load_settings(None, {"CORRAL_WEBHOOKS__INTERNAL": "['10.0.0.0/99']"})


def test_waits_that_stand_upside_down_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"webhooks\.retry_backoff_max_seconds"):
        load_settings(None, {"CORRAL_WEBHOOKS__RETRY_BACKOFF_SECONDS": "500"})
