"""`corral doctor` finds what is wrong and says what to do."""

import json
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from corral.cli import main

pytestmark = pytest.mark.usefixtures("_logging_as_before")


def examined(*arguments: str) -> tuple[dict[str, Any], int]:
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    findings = json.loads(result.stdout)
    for finding in findings:
        assert (finding["advice"] is None) == (finding["state"] == "ok"), finding
    return {finding["check"]: finding for finding in findings}, result.exit_code


def test_a_healthy_database_is_ok(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_STORE__URL", database_url)
    findings, _ = examined()
    for check in ("settings", "database", "schema", "clock"):
        assert findings[check]["state"] == "ok", findings[check]
    assert findings["disk"]["state"] in ("ok", "warning")


def test_a_database_that_is_behind_must_be_migrated(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("delete from schema_migrations")
    monkeypatch.setenv("CORRAL_STORE__URL", database_url)
    findings, status = examined()
    assert findings["schema"]["state"] == "failure"
    assert "corral admin migrate" in findings["schema"]["advice"]
    assert status == 1


def test_a_database_that_is_ahead_is_a_warning(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("insert into schema_migrations (number, name) values (9999, 'later')")
    monkeypatch.setenv("CORRAL_STORE__URL", database_url)
    findings, _ = examined()
    assert findings["schema"]["state"] == "warning"


def test_a_database_out_of_reach_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_STORE__URL", "postgresql:///corral?host=/nonexistent")
    findings, status = examined()
    assert findings["database"]["state"] == "failure"
    assert status == 1


def test_no_inference_credential_is_a_warning(tmp_path: object) -> None:
    findings, _ = examined("--data", str(tmp_path))
    assert findings["provider"]["state"] == "warning"
    assert "ANTHROPIC_API_KEY" in findings["provider"]["advice"]


def test_a_provider_out_of_reach_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("CORRAL_INFERENCE__BASE_URL", "http://127.0.0.1:1")
    findings, status = examined("--data", str(tmp_path))
    assert findings["provider"]["state"] == "failure"
    assert status == 1


def test_wrong_settings_are_each_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_SERVER__PORT", "many")
    findings, status = examined()
    assert "CORRAL_SERVER__PORT" in findings["settings"]["detail"]
    assert status == 1


def test_running_without_a_fence_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("CORRAL_WORKER__SANDBOX", "process")
    findings, _ = examined("--data", str(tmp_path))
    assert findings["sandbox"]["state"] == "warning"
