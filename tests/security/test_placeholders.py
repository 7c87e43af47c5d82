"""Where the secret of an environment variable goes, and all the places to which a sandbox cannot send it."""

import base64
import gzip
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import pytest_asyncio

from corral.testing import ScriptedModel
from tests.corral_server import SessionUnderTest
from tests.e2e.conftest import model as model
from tests.egress_world import Client, EgressWorld, Reply, Variable, egress_world
from tests.upstream_servers import Upstream, upstream

HOST = "api.internal.example"
OTHER = "other.internal.example"
BOTH = {"type": "limited", "allowed_hosts": [HOST, OTHER]}
# Every character of it means something in one of the places where it may stand.
VALUE = 'v4lue"\\&=+%25 §' + "end"


@dataclass
class Thief:
    """A sandbox with the placeholder, and a server of each host that its environment allows."""

    world: EgressWorld
    session: SessionUnderTest
    token: str
    variable: Variable
    placeholder: str
    server: Upstream
    other: Upstream

    async def at(self, host: str = HOST, *, tls: bool = True) -> tuple[Client, str]:
        """A tunnel to a host, and the host's authority."""
        port = self.server.port if host == HOST else self.other.port
        client = await self.world.client(self.token)
        await client.connect(f"{host}:{port}", tls=tls)
        return client, f"{host}:{port}"

    async def ask(self, host: str = HOST, method: str = "POST", target: str = "/", **given: Any) -> Reply:
        """One request over TLS."""
        client, authority = await self.at(host)
        return await client.ask(method, target, host=authority, **given)


def anywhere(server: Upstream, value: str = VALUE) -> bool:
    """Whether a server has got the value in any form that it can be read back from."""
    got = repr([(one.path, one.headers, one.body) for one in server.asked])
    forms = (value, repr(value)[1:-1], quote(value), quote_plus(value), json.dumps(value)[1:-1], "v4lue")
    return any(form in got for form in forms)


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncGenerator[EgressWorld]:
    """A gateway that may reach names below internal.example."""
    async with egress_world(database_url, model, tmp_path) as world:
        yield world


async def a_thief(
    world: EgressWorld, server: Upstream, other: Upstream, value: str = VALUE, **fields: Any
) -> Thief:
    variable = await world.variable(value, [HOST], **fields)
    session = await world.session(BOTH, vault_ids=[variable.vault_id])
    token = await world.token(session)
    return Thief(world, session, token, variable, variable.inside(session), server, other)


@pytest_asyncio.fixture
async def thief(world: EgressWorld) -> AsyncGenerator[Thief]:
    """See `Thief`: the credential is for `HOST`, the environment allows `OTHER` too."""
    async with (
        upstream(world.outside.context(HOST)) as server,
        upstream(world.outside.context(OTHER)) as other,
    ):
        yield await a_thief(world, server, other)


async def test_the_value_arrives_as_a_program_would_have_written_it(thief: Thief) -> None:
    """The one way in which the value leaves: to its host, and only there. The sandbox never has it."""
    mark = thief.placeholder
    basic = base64.b64encode(f"user:{mark}".encode()).decode()
    await thief.ask(
        headers=[("x-key", f"a {mark} b"), ("authorization", f"Basic {basic}")], body=mark.encode()
    )
    asked = thief.server.asked[-1]
    assert asked.header("x-key") == f"a {VALUE.encode().decode('latin-1')} b"
    told = (asked.header("authorization") or "").removeprefix("Basic ")
    assert base64.b64decode(told).decode() == f"user:{VALUE}"
    assert asked.body.decode() == VALUE
    text = json.dumps({"key": mark}).encode()
    await thief.ask(headers=[("content-type", "application/json; charset=utf-8")], body=text)
    assert json.loads(thief.server.asked[-1].body) == {"key": VALUE}
    form = [("content-type", "application/x-www-form-urlencoded")]
    await thief.ask(headers=form, body=f"a=1&key={mark}".encode())
    assert thief.server.asked[-1].body.decode() == f"a=1&key={quote_plus(VALUE)}"


async def test_a_placeholder_is_found_wherever_a_body_is_cut(thief: Thief) -> None:
    """Cutting it in two is no way to have it treated as something else."""
    mark, expected = thief.placeholder.encode(), b"<" + VALUE.encode() + b">"
    client, authority = await thief.at()
    for cut in range(1, len(mark), 7):
        await client.ask("POST", "/", host=authority, chunks=[b"<" + mark[:cut], mark[cut:] + b">"])
        assert thief.server.asked[-1].body == expected
    await client.ask("POST", "/", host=authority, chunks=[b"<", *(bytes([one]) for one in mark), b">"])
    assert thief.server.asked[-1].body == expected
    head = f"POST / HTTP/1.1\r\nHost: {authority}\r\nContent-Length: {len(mark) + 2}\r\n\r\n"
    for piece in (head.encode(), b"<" + mark[:9], mark[9:30], mark[30:] + b">"):
        await client.send(piece)
    await client.reader.readuntil(b"\r\n\r\n")
    assert thief.server.asked[-1].body == expected


def places(mark: str) -> dict[str, dict[str, Any]]:
    """Requests that have a placeholder where no secret is put, or in a form that is none."""
    encoded = base64.b64encode(mark.encode()).decode()
    return {
        "path": {"target": f"/a/{mark}/b"},
        "query": {"target": f"/?key={mark}"},
        "percent-encoded": {"headers": [("x-key", f"%63{mark[1:]}")]},
        "upper case": {"headers": [("x-key", mark.upper())]},
        "base64": {"headers": [("x-key", encoded)]},
        "base64 of a bearer": {"headers": [("authorization", f"Bearer {encoded}")]},
        "broken base64": {"headers": [("authorization", f"Basic {encoded}!")]},
        "one character short": {"headers": [("x-key", mark[:-1])], "body": mark[:-1].encode()},
        "name of a header": {"headers": [(mark, "1")]},
        "escaped in JSON": {"body": f'{{"key": "\\u0063{mark[1:]}"}}'.encode()},
        "UTF-16": {"body": mark.encode("utf-16-le")},
        "gzip": {"headers": [("content-encoding", "gzip")], "body": gzip.compress(mark.encode())},
        "said to be compressed": {"headers": [("content-encoding", "br")], "body": mark.encode()},
        "larger than is looked through": {"body": mark.encode() + bytes(8 * 1024 * 1024)},
    }


@pytest.mark.parametrize("place", places(""))
async def test_anywhere_else_the_placeholder_goes_out_as_it_is(thief: Thief, place: str) -> None:
    """The attacker gets nothing: the server sees the placeholder, or what it was turned into."""
    assert (await thief.ask(**places(thief.placeholder)[place])).status == 200
    assert len(thief.server.asked) == 1
    assert not anywhere(thief.server)


async def test_a_trailer_is_not_passed_on(thief: Thief) -> None:
    """A trailer is no header that a secret could be put into; the attacker gets nothing."""
    client, authority = await thief.at()
    await client.send(
        f"POST / HTTP/1.1\r\nHost: {authority}\r\nTransfer-Encoding: chunked\r\nTrailer: X-Key\r\n\r\n"
        f"1\r\na\r\n0\r\nX-Key: {thief.placeholder}\r\n\r\n".encode()
    )
    assert (await client.reply()).told["body"] == "a"
    assert not anywhere(thief.server)
    assert thief.placeholder not in repr(thief.server.asked)


@pytest.mark.parametrize("location", ["header", "body"])
async def test_only_the_enabled_location_has_the_value(world: EgressWorld, location: str) -> None:
    """Where the credential does not allow it, the server sees the placeholder."""
    async with upstream(world.outside.context(HOST)) as server:
        thief = await a_thief(world, server, server, "pl41n", injection_location={location: True})
        mark = thief.placeholder
        basic = base64.b64encode(f"u:{mark}".encode()).decode()
        headers = [("x-key", mark), ("authorization", f"Basic {basic}")]
        bodies: list[dict[str, Any]] = [{"body": mark.encode()}, {"chunks": [mark.encode()]}]
        for given in bodies:
            await thief.ask(headers=headers, **given)
            asked = server.asked[-1]
            in_headers = asked.header("x-key") == "pl41n"
            assert in_headers == (location == "header")
            assert (asked.header("authorization") == f"Basic {basic}") == (location == "body")
            assert (asked.body == b"pl41n") == (location == "body")


async def test_another_host_gets_the_placeholder_though_it_may_be_reached(thief: Thief) -> None:
    """The attacker's own server, which the environment allows and the credential does not, gets nothing."""
    mark = thief.placeholder
    basic = base64.b64encode(f"u:{mark}".encode()).decode()
    headers = [("x-key", mark), ("authorization", f"Basic {basic}"), ("cookie", f"k={mark}")]
    await thief.ask(OTHER, headers=headers, body=mark.encode())
    await thief.ask(OTHER, headers=headers, chunks=[mark[:5].encode(), mark[5:].encode()])
    assert [one.header("x-key") for one in thief.other.asked] == [mark, mark]
    assert not anywhere(thief.other)


async def test_nothing_is_put_in_where_the_wire_can_be_read(thief: Thief) -> None:
    """Plain HTTP, asked for as such or within a tunnel: who listens on the way gets nothing."""
    async with upstream() as plain:
        authority = f"{HOST}:{plain.port}"
        given: Any = {"headers": [("x-key", thief.placeholder)], "body": thief.placeholder.encode()}
        client = await thief.world.client(thief.token)
        assert (await client.ask("POST", f"http://{authority}/", host=authority, **given)).status == 200
        client = await thief.world.client(thief.token)
        await client.connect(authority, tls=False)
        assert (await client.ask("POST", "/", host=authority, **given)).status == 200
        assert [one.header("x-key") for one in plain.asked] == [thief.placeholder] * 2
        assert not anywhere(plain)


async def test_a_redirect_leads_the_value_nowhere(thief: Thief) -> None:
    """The server of the credential's host sends the client elsewhere; elsewhere gets the placeholder."""
    mark = [("x-key", thief.placeholder)]
    reply = await thief.ask(target="/redirect", headers=mark)
    assert (reply.status, reply.headers["location"]) == (302, "https://elsewhere.example/")
    assert thief.other.asked == []
    await thief.ask(OTHER, headers=mark)  # what a client that follows does
    assert not anywhere(thief.other)


@pytest.mark.parametrize("tunnel", [HOST, OTHER])
async def test_a_tunnel_to_one_host_carries_nothing_to_another(thief: Thief, tunnel: str) -> None:
    """Domain fronting, either way around: neither server gets the request."""
    client, authority = await thief.at(tunnel)
    named = {HOST: f"{OTHER}:{thief.other.port}", OTHER: f"{HOST}:{thief.server.port}"}[tunnel]
    mark = [("x-key", thief.placeholder)]
    assert (await client.ask("GET", "/", host=named, headers=mark)).status == 421
    client, authority = await thief.at(tunnel)
    assert (await client.ask("GET", f"https://{named}/", host=authority, headers=mark)).status == 400
    assert thief.server.asked == thief.other.asked == []


async def test_a_name_beside_the_hosts_own_gets_nothing(thief: Thief) -> None:
    """An alias that leads to the same server is not the host: its certificate does not name it."""
    alias = f"alias.internal.example:{thief.server.port}"
    client = await thief.world.client(thief.token)
    assert (await client.connect(alias, tls=False)).status == 403
    environments = thief.world.corral.client.beta.environments
    wide: Any = {"type": "cloud", "networking": {"type": "limited", "allowed_hosts": ["*.internal.example"]}}
    await environments.update((await thief.session.retrieve()).environment_id, config=wide)
    client = await thief.world.client(thief.token)
    await client.connect(alias)
    reply = await client.ask("GET", "/", host=alias, headers=[("x-key", thief.placeholder)])
    assert (reply.status, "certificate" in reply.text) == (502, True)
    assert thief.server.asked == []


async def test_each_of_several_requests_in_one_piece_is_judged_by_itself(thief: Thief) -> None:
    """A request behind an allowed one is no part of it: the second one's host gets nothing."""
    client, authority = await thief.at()
    one = f"GET /{{}} HTTP/1.1\r\nHost: {{}}\r\nX-Key: {thief.placeholder}\r\n\r\n"
    await client.send(
        (one.format("first", authority) + one.format("second", f"{OTHER}:{thief.other.port}")).encode()
    )
    heads = b""
    while data := await client.reader.read(65536):
        heads += data
    assert [part.split(b" ")[0] for part in heads.split(b"HTTP/1.1 ")[1:]] == [b"200", b"421"]
    assert [asked.path for asked in thief.server.asked] == ["/first"]
    assert thief.other.asked == []


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("GET / HTTP/1.1", "Connection: upgrade\r\nUpgrade: websocket\r\n", b"501"),
        ("GET / HTTP/1.1", "Connection: upgrade\r\nUpgrade: h2c, WebSocket\r\n", b"501"),
        ("TRACE / HTTP/1.1", "", b"405"),
        ("PRI * HTTP/2.0", "", b"505"),
        ("CONNECT other.internal.example:443 HTTP/1.1", "", b"400"),
    ],
)
async def test_what_would_leave_http_behind_is_refused(
    thief: Thief, request_line: str, headers: str, status: bytes
) -> None:
    """Upgrades, another protocol, a tunnel in a tunnel, and TRACE, whose answer shows what was put in."""
    client, authority = await thief.at()
    await client.send(
        f"{request_line}\r\nHost: {authority}\r\nX-Key: {thief.placeholder}\r\n{headers}\r\n".encode()
    )
    assert (await client.reader.readline()).split()[1] == status
    assert thief.server.asked == thief.other.asked == []


async def test_an_upgrade_to_http2_is_left_out(thief: Thief) -> None:
    """The request goes out as HTTP/1.1 and nothing else; the attacker gets no connection of his own."""
    headers = [("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c"), ("http2-settings", "AAMA")]
    assert (await thief.ask(headers=headers)).status == 200
    names = {name for name, _ in thief.server.asked[-1].headers}
    assert not names & {"upgrade", "http2-settings", "connection"}


async def test_answers_are_not_changed_so_an_allowed_host_can_tell_what_it_got(thief: Thief) -> None:
    """Documented, not prevented: a host that the credential names and that echoes it shows the value."""
    client, authority = await thief.at()
    reply = await client.ask("GET", f"/{thief.placeholder}", host=authority)
    assert reply.told["path"] == f"/{thief.placeholder}"
    reply = await client.ask("GET", "/", host=authority, headers=[("x-key", thief.placeholder)])
    echoed = dict(reply.told["headers"])["x-key"]
    assert echoed.encode("latin-1").decode() == VALUE
