"""What is logged, how, and what must never be."""

import io
import json
import logging
from typing import Any

import httpx
import psycopg
import pytest
import structlog

from corral.telemetry.logs import configure_logs
from corral.wire.secret import Secret

SECRETS = [
    "corral_ak_abcdefghijklmnop",
    "corral_ek_abcdefghijklmnop",
    "corral_pk_abc-def_ghi",
    "corral_vk_abc-def_ghi",
    "sk-ant-api03-abcdefgh",
    "sk-abcdefghijklmnopqrstuvwxyz",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "github_pat_abcdefghijklmnopqrstuvwxyz",
    "xoxb-123456789012-abcdef",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0x.c2lnbmF0dXJl",
]


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> io.StringIO:
    stream = io.StringIO()
    configure_logs("debug", request.param, secrets=[Secret("correct horse battery")], stream=stream)
    return stream


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_never_comes_out_wherever_it_stands(log: io.StringIO, secret: str) -> None:
    ours = structlog.stdlib.get_logger("corral.test")
    theirs = logging.getLogger("library")
    ours.info(f"in the message {secret}.")
    ours.info("in a value", note=f"it is {secret}", deep={"list": [("x", {"y": secret.encode()})]})
    ours.info("in a key", **{secret: 1})
    ours.info("in an object", error=ValueError(secret))
    theirs.warning("in an argument %s", secret)
    theirs.warning("in an extra", extra={"note": secret})
    try:
        raise RuntimeError(f"refused {secret}")
    except RuntimeError:
        ours.exception("in a traceback")
        theirs.exception("in a traceback")
    assert secret not in log.getvalue()
    assert log.getvalue().count("[secret]") >= 8


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "x-api-key",
        "api_key",
        "password",
        "secret",
        "client_secret",
        "refresh_token",
        "token",
        "cookie",
    ],
)
def test_a_value_under_a_telling_name_never_comes_out(log: io.StringIO, name: str) -> None:
    structlog.stdlib.get_logger().info(
        "request", **{name: "harmless-looking"}, headers={name.upper(): "harmless-looking"}
    )
    assert "harmless-looking" not in log.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer harmless-looking",
        "authorization=Basic harmless-looking",
        "{'x-api-key': 'harmless-looking'}",
        '{"password": "harmless-looking"}',
        "postgresql://corral:harmless-looking@db/corral",
        "curl -H 'x-api-key: harmless-looking'",
        "-----BEGIN RSA PRIVATE KEY-----\nharmless-looking\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_what_is_introduced_as_a_secret_never_comes_out(log: io.StringIO, text: str) -> None:
    structlog.stdlib.get_logger().info("said", text=text)
    logging.getLogger("library").error(text)
    assert "harmless-looking" not in log.getvalue()


def test_a_secret_of_the_settings_never_comes_out(log: io.StringIO) -> None:
    structlog.stdlib.get_logger().info(
        "the gateway said: bad key correct horse battery!", key=Secret("x" * 20)
    )
    assert "horse" not in log.getvalue()
    assert "x" * 20 not in log.getvalue()


def test_counts_of_tokens_are_shown(log: io.StringIO) -> None:
    structlog.stdlib.get_logger().info("usage", input_tokens=1234, output_tokens=5678)
    assert "1234" in log.getvalue()
    assert "5678" in log.getvalue()


def test_a_record_carries_what_was_bound_around_it() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream=stream)
    with structlog.contextvars.bound_contextvars(request_id="req_01", session_id="sesn_01"):
        structlog.stdlib.get_logger("corral.api").info("handled", status=200)
        logging.getLogger("library").warning("told")
    records: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    for record in records:
        assert (record["request_id"], record["session_id"]) == ("req_01", "sesn_01")
    assert records[0]["event"] == "handled"
    assert records[0]["status"] == 200
    assert records[0]["level"] == "info"
    assert "timestamp" in records[0]


def test_less_serious_records_are_left_out() -> None:
    stream = io.StringIO()
    configure_logs("warning", "json", stream=stream)
    structlog.stdlib.get_logger().info("no")
    structlog.stdlib.get_logger().warning("yes")
    logging.getLogger("library").info("no")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["yes"]


async def test_the_http_clients_requests_are_not_logged() -> None:
    stream = io.StringIO()
    configure_logs("info", "json", stream=stream)
    transport = httpx.MockTransport(lambda _: httpx.Response(200))
    async with httpx.AsyncClient(transport=transport) as client:
        await client.get("http://127.0.0.1/?key=abc")
    assert stream.getvalue() == ""


def test_off_a_terminal_the_format_is_json() -> None:
    stream = io.StringIO()
    configure_logs("info", "auto", stream=stream)
    structlog.stdlib.get_logger().info("one")
    assert json.loads(stream.getvalue())["event"] == "one"


def test_a_database_that_is_away_is_one_line_of_the_library_of_jobs_and_a_bug_is_not(
    log: io.StringIO,
) -> None:
    library = logging.getLogger("procrastinate.worker.worker")

    def fails(at_the_bottom: Exception) -> None:
        try:
            try:
                raise at_the_bottom
            except Exception as error:
                raise RuntimeError("Database error.") from error
        except RuntimeError:
            library.error("a side task failed", exc_info=True)

    fails(psycopg.OperationalError("no route to the host"))
    assert "no route to the host" in log.getvalue()
    assert "warning" in log.getvalue()
    assert "Traceback" not in log.getvalue()
    fails(ValueError("a bug"))
    assert "Traceback" in log.getvalue()
