"""`corral admin` on a real database."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from corral.cli import main

pytestmark = pytest.mark.usefixtures("_logging_as_before")


class Admin:
    """Calls `corral admin` with a database."""

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["admin", *arguments])

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)


@pytest.fixture
def admin(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Admin:
    monkeypatch.setenv("CORRAL_STORE__URL", database_url)
    return Admin()


def test_an_environment_is_made_and_listed(admin: Admin) -> None:
    made = admin.json("environment", "create", "build", "--type", "self_hosted", "--description", "ours")
    assert made["config"] == {"type": "self_hosted"}
    cloud = admin("environment", "create", "cloudy").stdout.strip()
    listed = admin.json("environment", "list")
    assert [one["id"] for one in listed] == [cloud, made["id"]]
    plain = admin("environment", "list").stdout
    assert made["id"] in plain
    assert "self_hosted" in plain


@pytest.mark.parametrize(("group", "mark"), [("api-key", "corral_ak_"), ("pool-key", "corral_pk_")])
def test_a_key_is_printed_once_listed_without_itself_and_revoked(admin: Admin, group: str, mark: str) -> None:
    made = admin.json(group, "create", "--name", "mine")
    assert made["key"].startswith(mark)
    listed = admin(group, "list").stdout + json.dumps(admin.json(group, "list"))
    assert made["id"] in listed
    assert "mine" in listed
    assert made["key"] not in listed
    assert admin.json(group, "revoke", made["id"])["revoked_at"] is not None
    assert "revoked" in admin(group, "list").stdout


def test_an_environment_key_belongs_to_an_environment(admin: Admin) -> None:
    environment = admin.json("environment", "create", "build", "--type", "self_hosted")
    key = admin("environment-key", "create", environment["id"])
    assert key.stdout.startswith("corral_ek_")
    assert "cannot be shown again" in key.stderr
    (listed,) = admin.json("environment-key", "list", environment["id"])
    assert listed["environment_id"] == environment["id"]
    assert admin.json("environment-key", "list", "env_01other") == []
    assert admin("environment-key", "revoke", listed["id"]).exit_code == 0


def test_a_key_for_an_unknown_environment_is_refused(admin: Admin) -> None:
    result = admin("environment-key", "create", "env_01none")
    assert result.exit_code == 1
    assert "env_01none" in result.stderr


def test_a_key_of_another_kind_is_not_revoked(admin: Admin) -> None:
    key = admin.json("api-key", "create")
    assert admin("pool-key", "revoke", key["id"]).exit_code == 1
    assert admin.json("api-key", "list")[0]["revoked_at"] is None


def test_migrating_again_changes_nothing(admin: Admin) -> None:
    assert admin.json("migrate") == {"applied": []}
    assert "up to date" in admin("migrate").stdout


def test_a_folder_without_a_database_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    result = CliRunner().invoke(main, ["admin", "api-key", "list", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "There is no database in" in result.stderr


def test_each_command_that_changes_something_is_in_the_audit_trail(admin: Admin) -> None:
    key = admin.json("api-key", "create")
    admin("api-key", "revoke", key["id"])
    admin("pool-key", "revoke", "pkey_01nobody")
    admin("api-key", "list")
    trail = admin.json("audit")
    assert [(one["action"].split(" admin ")[-1], one["objects"], one["status"]) for one in trail] == [
        ("pool-key revoke", ["pkey_01nobody"], 404),
        ("api-key revoke", [key["id"]], 200),
        ("api-key create", [key["id"]], 200),
    ]
    assert {one["actor_kind"] for one in trail} == {"command"}
    assert key["key"] not in json.dumps(trail)
    assert [one["objects"] for one in admin.json("audit", "--object", key["id"], "--limit", "1")] == [
        [key["id"]]
    ]
    plain = admin("audit").stdout
    assert "done" in plain
    assert "refused" in plain
    assert "No administrative act" in admin("audit", "--actor", "nobody").stderr
