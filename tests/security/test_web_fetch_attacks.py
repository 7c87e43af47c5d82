"""What a page, a link or a model may try with web_fetch, and that nothing of ours is reached.

The fetcher itself, with real servers on the loopback; the resolver is the test's.
"""

import asyncio
import gzip
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from corral.gateway.addresses import Reach
from corral.gateway.certificates import upstream_context
from corral.gateway.web_fetch import REDIRECTS, NotFetched, Page, WebFetcher, parse_url
from corral.wire.web_rules import WebSettings, combined
from tests.upstream_servers import Answer, Asked, TestAuthority, upstream
from tests.web_world import site

PUBLIC = "93.184.215.14"
ANY = WebSettings()
MOST = 200_000


class Fetching:
    """A fetcher and its resolver; `noted` is what it took down."""

    def __init__(self, internal: Sequence[str] = ("*.inside.example",), **settings: Any) -> None:
        self.names: dict[str, list[str]] = {}
        self.noted: list[tuple[str, int, str]] = []
        given: dict[str, Any] = {"ports": frozenset({80, 443}), "seconds": 20.0, "internal_tls": None}
        self.fetcher = WebFetcher(most=MOST, **{**given, **settings})
        self.reach = Reach(internal, resolver=self.resolve)

    async def resolve(self, name: str, port: int) -> Sequence[str]:
        if name.endswith(".inside.example"):
            return self.names.get(name, ["127.0.0.1"])
        if name in self.names:
            return self.names[name]
        raise OSError("no such name")

    async def page(self, url: str, settings: WebSettings = ANY) -> Page:
        def note(host: str, port: int, decision: str, reason: str) -> None:
            self.noted.append((host, port, decision))

        return await self.fetcher.fetch(parse_url(url), settings, self.reach, note)

    async def refused(self, url: str, settings: WebSettings = ANY) -> str:
        """The code with which a URL is refused."""
        with pytest.raises(NotFetched) as caught:
            await self.page(url, settings)
        return caught.value.code


ADDRESSES = [
    "127.0.0.1",
    "127.1",
    "0177.0.0.1",
    "2130706433",
    "0x7f000001",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "169.254.169.254",
    "[::ffff:169.254.169.254]",
    "100.100.100.200",
    "168.63.129.16",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "localhost",
    "rebound.example",
    "metadata.example",
]


@pytest.mark.parametrize("host", ADDRESSES)
async def test_no_address_of_ours_is_reached_in_any_spelling(host: str) -> None:
    async with upstream() as server:
        fetching = Fetching(ports=frozenset())
        fetching.names = {
            "localhost": ["127.0.0.1", "::1"],
            "rebound.example": ["127.0.0.1"],
            "metadata.example": ["169.254.169.254"],
        }
        code = await fetching.refused(f"http://{host}:{server.port}/")
        assert code in ("url_not_allowed", "invalid_tool_input")
        assert server.connections == 0


@pytest.mark.parametrize("host", ADDRESSES)
async def test_no_redirect_leads_to_an_address_of_ours(host: str) -> None:
    async with site() as outside, upstream() as inner:
        fetching = Fetching(ports=frozenset())
        fetching.names = {"localhost": ["127.0.0.1"], "rebound.example": ["127.0.0.1"]}
        fetching.names["metadata.example"] = ["169.254.169.254"]
        outside.leads("/", f"http://{host}:{inner.port}/latest/meta-data")
        code = await fetching.refused(f"http://www.inside.example:{outside.port}/")
        assert code in ("url_not_allowed", "url_not_accessible")
        assert inner.connections == 0


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "meta.inside.example"])
async def test_metadata_services_are_not_reached_even_if_they_are_named(host: str) -> None:
    fetching = Fetching(internal=["*.inside.example", "169.254.0.0/16", "fd00::/8"])
    fetching.names = {"meta.inside.example": ["169.254.169.254"]}
    assert await fetching.refused(f"http://{host}/latest/meta-data/") == "url_not_allowed"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://user@www.inside.example/", "url_not_allowed"),
        ("http://user:pass@www.inside.example/", "url_not_allowed"),
        ("http://www.inside.example@evil.example/", "url_not_allowed"),
        ("http://:@www.inside.example/", "url_not_allowed"),
        ("http://www.inside.example\\@evil.example/", "invalid_tool_input"),
        ("http://www.inside.example%2eevil.example/", "invalid_tool_input"),
        ("http://www.inside.example/\r\nHost: evil.example", "invalid_tool_input"),
        ("http://www .inside.example/", "invalid_tool_input"),
        ("http:///etc/passwd", "invalid_tool_input"),
        ("file:///etc/passwd", "invalid_tool_input"),
        ("ftp://www.inside.example/", "invalid_tool_input"),
        ("gopher://www.inside.example/", "invalid_tool_input"),
        ("data:text/html,x", "invalid_tool_input"),
        ("//www.inside.example/", "invalid_tool_input"),
        ("http://[fe80::1%25eth0]/", "invalid_tool_input"),
        ("http://www.inside.example:0/", "invalid_tool_input"),
        ("http://www.inside.example:99999/", "invalid_tool_input"),
        ("", "invalid_tool_input"),
        ("http://www.inside.example/" + "x" * 2048, "url_too_long"),
    ],
)
async def test_urls_that_could_mean_something_else_are_refused(url: str, code: str) -> None:
    assert await Fetching().refused(url) == code


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://u:p@www.inside.example/", "gopher://x/"])
async def test_redirects_go_to_http_alone_and_carry_no_password(location: str) -> None:
    async with site() as outside:
        outside.leads("/", location)
        code = await Fetching().refused(f"http://www.inside.example:{outside.port}/")
        assert code == "url_not_allowed"


async def test_a_name_that_means_another_address_a_moment_later_gains_nothing() -> None:
    async with site() as outside, upstream(host="127.0.0.2", port=outside.port) as inner:
        outside.puts("/", "the first", "text/plain")
        fetching = Fetching(internal=["127.0.0.1"])
        answers = [["127.0.0.1"], ["127.0.0.2"], ["127.0.0.2"]]

        async def turning(name: str, port: int) -> Sequence[str]:
            return answers.pop(0)

        fetching.reach = Reach(["127.0.0.1"], resolver=turning)
        # Whoever looked again between the check and the connection would be led to the second address.
        url = f"http://turning.example:{outside.port}/"
        assert (await fetching.page(url)).body == b"the first"
        assert len(answers) == 2
        assert await fetching.refused(url) == "url_not_allowed", "and a new request looks anew"
        assert inner.connections == 0


async def test_of_several_addresses_those_of_ours_are_left_out() -> None:
    async with site() as outside, upstream(host="127.0.0.2", port=outside.port) as inner:
        outside.puts("/", "the one", "text/plain")
        fetching = Fetching(internal=["127.0.0.1"])
        fetching.names["both.example"] = ["127.0.0.2", "169.254.169.254", "127.0.0.1"]
        assert (await fetching.page(f"http://both.example:{outside.port}/")).body == b"the one"
        assert inner.connections == 0


async def test_ports_of_the_internet_that_are_not_named_are_refused() -> None:
    fetching = Fetching()
    fetching.names["mail.example"] = [PUBLIC]
    assert await fetching.refused("http://mail.example:25/") == "url_not_allowed"
    assert fetching.noted == [("mail.example", 25, "denied")]


async def test_a_chain_of_redirects_comes_to_an_end() -> None:
    async with site() as outside:
        for n in range(REDIRECTS + 2):
            outside.leads(f"/{n}", f"/{n + 1}", 301)
        outside.puts(f"/{REDIRECTS + 1}", "the end", "text/plain")
        fetching = Fetching()
        base = f"http://www.inside.example:{outside.port}"
        assert await fetching.refused(f"{base}/0") == "url_not_accessible"
        assert len(outside.paths()) == REDIRECTS + 1
        outside.leads("/loop", "/loop", 308)
        assert await fetching.refused(f"{base}/loop") == "url_not_accessible"
        assert (await fetching.page(f"{base}/1")).body == b"the end", "so many are followed"


async def test_a_redirect_is_held_against_the_domains_of_the_tool() -> None:
    async with site() as outside:
        outside.leads("/", f"http://evil.inside.example:{outside.port}/x")
        settings = combined([{"blocked_domains": ["evil.inside.example"]}])
        fetching = Fetching()
        assert (
            await fetching.refused(f"http://a.inside.example:{outside.port}/", settings) == "url_not_allowed"
        )
        assert outside.paths() == ["/"]
        assert fetching.noted[-1] == ("evil.inside.example", outside.port, "denied")


def endless(piece: bytes, *headers: tuple[str, str]) -> Callable[[Asked], Any]:
    """A server that sends a piece again and again, much more of it than is wanted."""

    async def respond(asked: Asked) -> Answer:
        return (
            200,
            [("content-type", "text/plain"), *headers, ("transfer-encoding", "chunked")],
            [piece] * 5000,
        )

    return respond


async def test_a_body_that_does_not_end_is_cut_off() -> None:
    async with upstream(respond=endless(b"x" * 10_000)) as server:
        code = await Fetching().refused(f"http://www.inside.example:{server.port}/")
        assert code == "content_too_large"


@pytest.mark.parametrize("window", [zlib.MAX_WBITS | 16, zlib.MAX_WBITS])
async def test_a_compressed_bomb_is_not_unpacked(window: int) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, window)
    bomb = packer.compress(bytes(300 * 1024 * 1024)) + packer.flush()
    assert len(bomb) > MOST
    async with site() as outside:
        for length in (MOST // 2, len(bomb)):
            name = "gzip" if window > zlib.MAX_WBITS else "deflate"
            outside.puts("/", bomb[:length], "text/plain", content_encoding=name)
            code = await Fetching().refused(f"http://www.inside.example:{outside.port}/")
            assert code == "content_too_large"


async def test_a_small_bomb_is_held_back_while_it_unpacks() -> None:
    bomb = gzip.compress(bytes(50 * 1024 * 1024))
    assert len(bomb) < MOST
    async with site() as outside:
        outside.puts("/", bomb, "text/plain", content_encoding="gzip")
        code = await Fetching().refused(f"http://www.inside.example:{outside.port}/")
        assert code == "content_too_large"


async def test_what_is_compressed_is_unpacked_and_what_lies_about_it_refused() -> None:
    async with site() as outside:
        url = f"http://www.inside.example:{outside.port}/"
        outside.zips("/", b"plain")
        assert (await Fetching().page(url)).body == b"plain"
        for encoding in ("br", "zstd", "gzip, gzip"):
            outside.puts("/", b"plain", "text/plain", content_encoding=encoding)
            assert await Fetching().refused(url) == "unsupported_content_type"
        outside.puts("/", b"plain", "text/plain", content_encoding="gzip")
        assert await Fetching().refused(url) == "url_not_accessible"


async def test_a_server_that_keeps_us_waiting_is_given_up() -> None:
    async def drip(asked: Asked) -> Answer:
        await asyncio.sleep(3600)
        raise AssertionError

    async with upstream(respond=drip) as server:
        code = await Fetching(seconds=0.5).refused(f"http://www.inside.example:{server.port}/")
        assert code == "url_not_accessible"


async def test_a_body_that_trickles_is_given_up() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100000\r\n\r\n")
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        code = await Fetching(seconds=0.5).refused(f"http://www.inside.example:{port}/")
        assert code == "url_not_accessible"


@pytest.mark.parametrize("status", [204, 304, 401, 403, 404, 500])
async def test_statuses_that_bring_no_page_are_told(status: int) -> None:
    async with site() as outside:
        outside.pages["/"] = (status, [("content-length", "0")] if status not in (204, 304) else [], [])
        url = f"http://www.inside.example:{outside.port}/"
        if status == 204:
            assert (await Fetching().page(url)).body == b""
        else:
            assert await Fetching().refused(url) == "url_not_accessible"


@pytest.mark.parametrize("expired", [False, True])
async def test_the_certificate_must_be_the_hosts(tmp_path: Path, expired: bool) -> None:
    authority = TestAuthority(tmp_path)
    fetching = Fetching(internal_tls=upstream_context(authority.bundle))
    wrong = "www.inside.example" if expired else "other.inside.example"
    async with site(context=authority.context(wrong, expired=expired)) as outside:
        outside.puts("/", "no", "text/plain")
        assert await fetching.refused(f"https://www.inside.example:{outside.port}/") == "url_not_accessible"
        assert outside.paths() == []
    async with site(context=authority.context("www.inside.example")) as outside:
        outside.puts("/", "yes", "text/plain")
        assert (await fetching.page(f"https://www.inside.example:{outside.port}/")).body == b"yes"
