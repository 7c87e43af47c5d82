"""Webhooks as a way into the network behind the server: none of the known ways leads there."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from corral.resources.webhook_delivery import REFUSED
from corral.resources.webhook_sender import Resolver, Sender
from corral.resources.webhook_services import open_webhooks
from corral.settings import Webhooks as WebhookSettings
from corral.store.database import Database
from corral.wire.addresses import Internal
from corral.wire.errors import InvalidRequest
from corral.wire.webhooks import CreateWebhook, check_endpoint
from tests.webhook_receiver import Receiver, authority, receiving

INSIDE = [
    "https://127.0.0.1/",
    "https://127.1.2.3/",
    "https://localhost.localdomain@127.0.0.1/",
    "https://127.0.0.1./",
    "https://0177.0.0.1/",
    "https://0x7f000001/",
    "https://2130706433/",
    "https://127.1/",
    "https://0.0.0.0/",
    "https://10.0.0.1/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://168.63.129.16/",
    "https://100.100.100.200/",
    "https://192.0.2.1/",
    "https://198.18.0.1/",
    "https://198.51.100.7/",
    "https://203.0.113.9/",
    "https://224.0.0.1/",
    "https://240.0.0.1/",
    "https://255.255.255.255/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[64:ff9b:1::a00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:7f00:1::]/",
    "https://[fc00::1]/",
    "https://[fd00:ec2::254]/",
    "https://[fe80::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[fec0::1]/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
]
UNFIT = [
    "http://hooks.example.com/",
    "https://hooks.example.com:8443/",
    "https://user:password@hooks.example.com/",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "gopher://hooks.example.com/",
    "https://",
    "//hooks.example.com/",
    "https://hooks.example.com\\@127.0.0.1/",
    "https://hooks.example.com /",
    "https://hooks.example.com:99999/",
    "https://ⓛocalhost/",
    "https://127。0。0。1/",
]


@pytest.mark.parametrize("url", [*INSIDE, *UNFIT])
def test_no_endpoint_inside_or_off_https_can_be_registered(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^url: "):
        check_endpoint(url, Internal())


@pytest.mark.parametrize("url", [*INSIDE, *UNFIT])
async def test_nothing_is_sent_there_even_if_it_was_registered(url: str) -> None:
    async with sending([]) as sender:
        outcome = await sender.send(url, b"{}", {})
    assert outcome.kind in ("refused", "failed")
    assert outcome.status is None


@pytest.mark.parametrize(
    "url", ["https://169.254.169.254/", "https://[fe80::1]/", "https://[::ffff:169.254.169.254]/"]
)
def test_metadata_addresses_stay_out_of_reach_whatever_is_named(url: str) -> None:
    everything = Internal(["0.0.0.0/0", "::/0"])
    with pytest.raises(InvalidRequest):
        check_endpoint(url, everything)


def resolving(*answers: Sequence[str]) -> tuple[Resolver, list[str]]:
    """A resolver that gives these answers in turn, the last one again and again; and what it was asked."""
    asked: list[str] = []

    async def resolve(name: str, port: int) -> Sequence[str]:
        asked.append(name)
        return answers[min(len(asked), len(answers)) - 1]

    return resolve, asked


@asynccontextmanager
async def sending(addresses: Sequence[str], *internal: str, **fields: Any) -> AsyncGenerator[Sender]:
    resolver, _ = resolving(addresses)
    async with Sender(Internal(internal), timeout=5.0, resolver=resolver, **fields) as sender:
        yield sender


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.8", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
)
async def test_a_name_that_leads_inside_is_refused_and_nothing_is_connected_to(address: str) -> None:
    async with sending([address]) as sender:
        outcome = await sender.send("https://hooks.example.com/", b"{}", {})
    assert outcome.kind == "refused"


async def test_a_name_with_one_address_inside_is_refused_as_a_whole() -> None:
    async with sending(["93.184.215.14", "127.0.0.1"]) as sender:
        outcome = await sender.send("https://hooks.example.com/", b"{}", {})
    assert outcome.kind == "refused"


async def test_a_name_is_looked_up_once_for_an_attempt_so_rebinding_gains_nothing() -> None:
    # The name means what is allowed when it is checked, and something else a moment later.
    resolver, asked = resolving(["127.0.0.2"], ["127.0.0.1"])
    async with receiving() as inside, receiving(host="127.0.0.2") as allowed:
        port = allowed.base_url.rpartition(":")[2]
        async with Sender(Internal(["hooks.example.com"]), timeout=5.0, resolver=resolver) as sender:
            outcome = await sender.send(f"http://hooks.example.com:{port}/hook", b"{}", {})
    assert outcome.kind == "taken"
    assert asked == ["hooks.example.com"]
    assert [message.headers["host"] for message in allowed.messages] == [f"hooks.example.com:{port}"]
    assert inside.messages == []


async def test_a_name_that_comes_to_lead_inside_disables_its_endpoint(database: Database) -> None:
    resolver, _ = resolving(["10.1.2.3"])
    async with open_webhooks(database, WebhookSettings(), resolver=resolver) as webhooks:
        made, _ = await webhooks.endpoints.create(
            CreateWebhook(url="https://hooks.example.com/", events=["agent.created"])
        )
        await database.execute("insert into agents (id, version) values ('agent_1', 1)")
        await webhooks.deliveries.deliver_due()
        found = await webhooks.endpoints.retrieve(made.id)
    assert (found.status, found.disabled_reason) == ("disabled", REFUSED)


async def test_a_certificate_of_nobody_known_is_not_accepted(tmp_path: Path) -> None:
    folder = authority(tmp_path)
    async with receiving(tls=folder) as receiver, sending(["127.0.0.1"], "localhost") as sender:
        outcome = await sender.send(receiver.base_url + "/", b"{}", {})
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert outcome.error.startswith("its certificate is not accepted")
    assert receiver.messages == []


async def test_a_certificate_of_another_name_is_not_accepted(tmp_path: Path) -> None:
    folder = authority(tmp_path, names=("other.example.com",))
    ca_file = str(folder / "ca.pem")
    async with (
        receiving(tls=folder) as receiver,
        sending(["127.0.0.1"], "localhost", ca_file=ca_file) as sender,
    ):
        outcome = await sender.send(receiver.base_url + "/", b"{}", {})
    assert outcome.kind == "failed"
    assert receiver.messages == []


async def test_the_certificate_is_checked_for_the_name_though_the_address_is_pinned(tmp_path: Path) -> None:
    folder = authority(tmp_path, names=("hooks.example.com",))
    ca_file = str(folder / "ca.pem")
    async with (
        receiving(tls=folder) as receiver,
        sending(["127.0.0.1"], "hooks.example.com", ca_file=ca_file) as sender,
    ):
        port = receiver.base_url.rpartition(":")[2]
        outcome = await sender.send(f"https://hooks.example.com:{port}/", b"{}", {})
    assert outcome.kind == "taken", outcome


async def answered(receiver: Receiver, *answers: tuple[int, dict[str, str]]) -> None:
    receiver.answers[:] = answers
    async with sending([], "127.0.0.1") as sender:
        for _ in answers:
            await sender.send(receiver.base_url + "/", b"{}", {})


async def test_no_redirect_is_followed_and_no_cookie_is_sent_back() -> None:
    async with receiving() as receiver, receiving() as elsewhere:
        await answered(
            receiver,
            (307, {"location": elsewhere.base_url + "/", "set-cookie": "a=b; Path=/"}),
            (200, {"set-cookie": "c=d; Path=/"}),
            (200, {}),
        )
        assert elsewhere.messages == []
        assert len(receiver.messages) == 3
        assert not [message for message in receiver.messages if "cookie" in message.headers]


async def test_no_proxy_of_the_environment_sees_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as receiver, receiving() as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.base_url)
        await answered(receiver, (200, {}))
        assert proxy.messages == []
        assert len(receiver.messages) == 1


async def test_an_answer_without_end_is_not_read() -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        try:
            while True:
                writer.write(chunk)
                await writer.drain()
                sent += 1
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server, sending([], "127.0.0.1") as sender:
        port = server.sockets[0].getsockname()[1]
        outcome = await sender.send(f"http://127.0.0.1:{port}/", b"{}", {})
    assert outcome.kind == "taken"
    assert sent < 500


async def test_headers_without_end_are_not_read() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        try:
            while True:
                writer.write(b"a: " + b"x" * 65536 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with server, sending([], "127.0.0.1") as sender:
        port = server.sockets[0].getsockname()[1]
        outcome = await sender.send(f"http://127.0.0.1:{port}/", b"{}", {})
    assert outcome.kind == "failed"


async def test_what_a_receiver_says_is_neither_kept_nor_shown(database: Database) -> None:
    async with receiving() as receiver:
        settings = WebhookSettings(internal=["127.0.0.1"])
        receiver.answers[:] = [(500, {"x-inside": "a-secret-of-the-inside"})]
        async with open_webhooks(database, settings) as webhooks:
            made, _ = await webhooks.endpoints.create(
                CreateWebhook(url=receiver.base_url + "/", events=["agent.created"])
            )
            trial = await webhooks.test(made.id)
    assert trial.status == 500
    assert trial.error == "answered 500"
