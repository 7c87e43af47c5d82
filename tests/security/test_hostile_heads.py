"""Hostile heads, paths, queries and credentials: each gets a clear 4xx, and costs little."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import httpx
import msgspec
import pytest

from corral.api.app import ROUTES, create_app
from corral.api.connection import HEAD_BYTES, BoundedProtocol
from corral.wire.ids import new_id
from tests.contract.conftest import Api, serving
from tests.contract.conftest import api as api
from tests.populated import World
from tests.security.hostile import raw, refused
from tests.security.hostile import world as world

HEADS: Final[dict[str, tuple[bytes, int]]] = {
    "a header of 100 KB": (b"GET /v1/agents HTTP/1.1\r\nhost: a\r\nx: " + b"b" * 100_000 + b"\r\n\r\n", 431),
    "10,000 headers": (b"GET /v1/agents HTTP/1.1\r\nhost: a\r\n" + b"x: b\r\n" * 20_000 + b"\r\n", 431),
    "a query of 100 KB": (b"GET /v1/agents?page=" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n", 431),
    "a header without end": (b"GET /v1/agents HTTP/1.1\r\nhost: a\r\nx: " + b"b" * 400_000, 431),
    "no HTTP": (b"hello\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "an unknown method": (b"BREW /v1/agents HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a bad length": (b"POST /v1/agents HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
    "two lengths": (
        b"POST /v1/agents HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na",
        400,
    ),
    "length and chunks": (
        b"POST /v1/agents HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n"
        b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "a raw byte in the path": (b"GET /v1/\xff HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "a blank in the path": (b"GET /v1/a gents HTTP/1.1\r\nhost: a\r\n\r\n", 400),
    "NUL in a header": (b"GET /v1/agents HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\n\r\n", 400),
}


@pytest.mark.parametrize("name", HEADS)
async def test_a_head_that_is_none_is_refused_in_the_envelope(api: Api, name: str) -> None:
    head, status = HEADS[name]
    answer = await raw(api, head)
    first, _, body = answer.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    told = msgspec.json.decode(body)
    assert told["error"]["type"] == "invalid_request_error"
    assert f"request-id: {told['request_id']}".encode() in first
    assert (await api.get("/healthz")).status_code == 200


async def test_a_head_may_nearly_fill_its_bound(api: Api) -> None:
    response = await api.get("/v1/agents", headers={"x-long": "a" * (HEAD_BYTES - 1000)})
    assert response.status_code == 200


async def test_a_head_that_does_not_come_to_its_end_is_given_up(api: Api) -> None:
    class Hasty(BoundedProtocol):
        head_seconds = 0.1

    async with serving(create_app(api.services), http=Hasty) as url:
        answer = await raw(url, b"GET /v1/agents HTTP/1.1\r\n")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"timeout_error"' in answer
        assert await raw(url) == b""
        async with httpx.AsyncClient(base_url=url) as http:
            for _ in range(2):
                assert (await http.get("/healthz")).status_code == 200


async def test_a_body_that_stops_coming_is_given_up(api: Api) -> None:
    hasty = replace(api.services, body_seconds=0.1)
    key = api.api_key.encode()
    head = b" HTTP/1.1\r\nhost: a\r\nx-api-key: " + key + b"\r\ncontent-length: 100\r\n"
    async with serving(create_app(hasty)) as url:
        for request in (
            b"POST /v1/agents" + head + b'\r\n{"name": ',
            b"POST /v1/files" + head + b"content-type: multipart/form-data; boundary=x\r\n\r\n--x\r\n",
        ):
            answer = await raw(url, request)
            assert answer.startswith(b"HTTP/1.1 408 "), answer[:200]
            assert b"connection: close" in answer
            assert b"No more of the request's body came for 0.1 s" in answer


def _tricks() -> Iterator[str]:
    yield from ("/v1/agents/", "//v1/agents", "/v1//agents", "/v1/agents//", "/V1/agents", "/v1/agents/.")
    yield from ("/v1/../v1/agents", "/v1/agents/..", "/v1/agents/../environments", "/v1/./agents", "/")
    yield from ("/v1/agents/%2e%2e%2fenvironments", "/v1/agents/..%2f", "/v1/agents%00", "/%")
    yield from ("/v1/agents/%zz", "/v1/agents/%ff", "/v1/agents/%c0%ae", "/v1/agents/a%0d%0ax:%20y", "/%2e")
    yield from ("/v1/agents/\\..\\", "/v1/agents;a=b", "/v1/agents/*", "/openapi.json/", "/v1/agents/%25")
    yield from ("/v1/agents/" + "a" * 129, "/v1/agents/agent_01/versions/1", "/v1/agents/%F0%9F%92%A9")


@pytest.mark.parametrize("path", [*_tricks()])
async def test_a_path_that_is_a_trick_leads_nowhere(api: Api, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nhost: a\r\nx-api-key: {api.api_key}\r\nconnection: close\r\n\r\n"
    first, _, body = (await raw(api, request.encode())).partition(b"\r\n\r\n")
    assert first.startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 ")), first[:300]
    assert msgspec.json.decode(body)["error"]["type"] in ("not_found_error", "invalid_request_error")


QUERIES: Final = [
    *("limit=%zz", "limit=%ff", "limit=%00", "limit=1%00", "limit=1&limit=2", "limit[]=1", "limit=٣"),
    *("page=%00", "page=%ff", "page=é", "page=[]", "page=e30", "page=" + "A" * 5000, "page=W10%3D%3D%3D"),
    *("created_at[gte]=%00", "created_at[gte]=0000-00-00", "created_at[gte]=99999-01-01", "created_at=2026"),
    *("include_archived=%ff", "include_archived=yes", "&&&&", "=", "=&=", "%00=%00", "a" * 5000, "[]=1"),
    *(";", "limit=1;page=2", "limit=%31", "&".join(f"a{n}=1" for n in range(5000)), "+", "?", "#"),
]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query[:30])
async def test_a_hostile_query_is_ignored_or_refused_by_name(api: Api, query: str) -> None:
    for path in ("/v1/agents", "/v1/sessions", "/v1/files", "/v1/deployment_runs"):
        request = (
            f"GET {path}?{query} HTTP/1.1\r\nhost: a\r\nx-api-key: {api.api_key}\r\nconnection: close\r\n\r\n"
        )
        first, _, body = (await raw(api, request.encode())).partition(b"\r\n\r\n")
        if first.startswith(b"HTTP/1.1 200 "):
            continue
        assert first.startswith(b"HTTP/1.1 400 "), first[:300]
        message = msgspec.json.decode(body)["error"]["message"]
        assert message.startswith(
            ("limit", "page", "created_at", "include_archived", "invalid page", "Invalid HTTP")
        )


async def test_credentials_of_any_shape_are_only_wrong(api: Api) -> None:
    for value in (
        "Bearer",
        "Bearer x y",
        "Basic YTpi",
        "a" * 10_000,
        "Bearer " + "a" * 10_000,
        "é",
    ):
        async with httpx.AsyncClient(base_url=api.base_url) as nobody:
            headers = {b"authorization": value.encode("latin-1"), b"x-api-key": value.encode("latin-1")}
            response = await nobody.get("/v1/agents", headers=headers)
        assert refused(response, 401) == "Authentication failed"


async def test_an_id_of_another_family_is_not_found(world: World) -> None:
    for route in ROUTES:
        if "{" not in route.path or not route.callers or route.method == "DELETE":
            continue
        path = route.path
        for name in world.ids:
            path = path.replace(f"{{{name}}}", new_id("outc"))
        if "{" in path:
            continue
        async with world.api.http.stream(
            route.method, path, json={}, headers=world.headers(route)
        ) as response:
            assert response.status_code in (400, 404), (route, response.status_code)
