"""`corral admin webhook` on a real database, and against a real receiver."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from standardwebhooks import Webhook as Verifier

from tests.unit.cli.test_admin import Admin
from tests.unit.cli.test_admin import admin as admin

pytestmark = pytest.mark.usefixtures("_logging_as_before")

URL = "https://hooks.example.com/corral"


class Outside(HTTPServer):
    """A receiver in a thread, since a command runs a loop of its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.status = 204
        self.messages: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Answering(BaseHTTPRequestHandler):
    """Answers as its server is told to."""

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Outside)
        body = self.rfile.read(int(self.headers["content-length"]))
        server.messages.append((dict(self.headers), body))
        self.send_response(server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    monkeypatch.setenv("CORRAL_WEBHOOKS__INTERNAL", "[127.0.0.1]")
    with Outside() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_an_endpoint_lives_from_its_creation_to_its_deletion(admin: Admin) -> None:
    made = admin.json("webhook", "create", URL, "--event", "agent.created", "--description", "Builds")
    assert made["secret"].startswith("whsec_")
    listed = admin.json("webhook", "list")
    assert [(one["id"], one["events"]) for one in listed] == [(made["id"], ["agent.created"])]
    assert made["secret"] not in admin("webhook", "list").output + admin("webhook", "show", made["id"]).output
    changed = admin.json("webhook", "update", made["id"], "--event", "agent.deleted", "--description", "")
    assert (changed["events"], changed["description"]) == (["agent.deleted"], None)
    assert admin.json("webhook", "disable", made["id"])["status"] == "disabled"
    assert "disabled (disabled by request)" in admin("webhook", "list").output
    assert admin.json("webhook", "enable", made["id"])["status"] == "enabled"
    rotated = admin.json("webhook", "rotate-secret", made["id"], "--overlap", "60")
    assert rotated["secret"] != made["secret"]
    assert admin.json("webhook", "delete", made["id"]) == {"id": made["id"], "type": "webhook_deleted"}
    assert admin.json("webhook", "list") == []


def test_the_secret_alone_is_printed_for_scripts(admin: Admin) -> None:
    result = admin("webhook", "create", URL)
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    Verifier(line)
    assert "cannot be shown again" in result.stderr
    assert admin("webhook", "secret").stdout.startswith("whsec_")


def test_what_cannot_be_is_told_with_its_reason(admin: Admin) -> None:
    for arguments, message in (
        (("create", "http://hooks.example.com/"), "must be https on port 443"),
        (("create", URL, "--event", "agent.exploded"), "there is no event 'agent.exploded'"),
        (("update", "whep_1"), "Nothing to change"),
        (("show", "whep_1"), "Webhook whep_1 not found."),
        (("delete", "whep_1"), "Webhook whep_1 not found."),
    ):
        result = admin("webhook", *arguments)
        assert result.exit_code == 1
        assert message in result.stderr


def test_a_test_message_reaches_the_endpoint_and_its_outcome_is_the_exit_status(
    admin: Admin, outside: Outside
) -> None:
    made = admin.json("webhook", "create", outside.url)
    assert admin.json("webhook", "test", made["id"])["delivered"] is True
    (headers, body) = outside.messages[0]
    assert Verifier(made["secret"]).verify(body, headers)["data"]["type"] == "webhook.test"
    outside.status = 500
    result = admin("webhook", "test", made["id"])
    assert result.exit_code == 1
    assert "answered 500" in result.stderr


def test_show_has_what_became_of_the_last_events(admin: Admin) -> None:
    made = admin.json("webhook", "create", URL, "--event", "environment.created")
    environment = admin.json("environment", "create", "build")
    shown = admin.json("webhook", "show", made["id"])
    assert [(one["event_type"], one["subject_id"], one["state"]) for one in shown["deliveries"]] == [
        ("environment.created", environment["id"], "waiting")
    ]
    assert environment["id"] in admin("webhook", "show", made["id"]).output


def test_what_the_command_line_changes_is_recorded_without_the_secret(admin: Admin) -> None:
    made = admin.json("webhook", "create", URL)
    admin.json("webhook", "disable", made["id"])
    records = admin.json("audit")
    assert [record["action"].split()[-2:] for record in records] == [
        ["webhook", "disable"],
        ["webhook", "create"],
    ]
    assert made["secret"] not in json.dumps(records)
