"""Hostile requests: each gets a clear 4xx that names the field if there is one, and costs little.

The bodies go to every route that takes one, by its description; none is left out because somebody forgot.
"""

import json
import resource
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import httpx
import msgspec
import pytest

from corral.api.app import ROUTES
from corral.api.describe import Bytes, Form, Optional
from corral.api.routing import Route
from corral.wire.decode import BODY_BYTES, DEPTH
from tests.contract.conftest import Api
from tests.contract.conftest import api as api
from tests.populated import World
from tests.security.hostile import refused
from tests.security.hostile import world as world

WRITES: Final = [route for route in ROUTES if route.method in ("POST", "PATCH")]
JSON_ROUTES: Final = [route for route in WRITES if isinstance(route.takes, type | Optional)]

# Each is refused by every route that takes JSON.
BODIES: Final[dict[str, bytes]] = {
    "cut off": b'{"name": "a"',
    "an array": b"[]",
    "a string": b'"name"',
    "a number": b"1",
    "a constant": b"null",
    "two documents": b"{}{}",
    "a trailing comma": b'{"name": "a",}',
    "a comment": b"{} // that is all",
    "single quotes": b"{'name': 'a'}",
    "a form": b"name=a&model=b",
    "a raw NUL": b'{"name": "a\x00b"}',
    "NUL alone": b"\x00" * 64,
    "a raw line break in a text": b'{"name": "a\nb"}',
    "invalid UTF-8": b'{"name": "\xff\xfe"}',
    "an overlong encoding": b'{"name": "\xc0\xaf"}',
    "an encoded surrogate": b'{"name": "\xed\xa0\x80"}',
    "UTF-16": '{"name": "a"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"name": "a"}',
    "NaN": b'{"name": NaN}',
    "Infinity": b'{"name": Infinity}',
    "minus Infinity": b'{"name": -Infinity}',
    "1e400": b'{"name": 1e400}',
    "an integer of 100,000 digits": b'{"name": ' + b"9" * 100_000 + b"}",
    "a fraction of 100,000 digits": b'{"zzz": 0.' + b"9" * 100_000 + b"}",
    "a key twice": b'{"name": "a", "name": "b"}',
    "a key twice, deep inside": b'{"zzz": [{"a": {"b": 1, "b": 2}}]}',
    "arrays 100,000 deep": b'{"zzz": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects 100,000 deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "arrays deep and cut off": b'{"zzz": ' + b"[" * 100_000,
    "a key with NUL": b'{"zz\\u0000z": 1}',
    "a key with a lone surrogate": b'{"zz\\ud800z": 1}',
    "a field that nobody knows": b'{"zzz": 1}',
    "a prototype": b'{"__proto__": {"admin": true}, "constructor": {}}',
    "100,000 fields": msgspec.json.encode({f"zzz{n}": n for n in range(100_000)}),
}
SPACES: Final = (b"", b" \n\t")


@pytest.mark.parametrize("name", BODIES)
async def test_every_route_that_takes_json_refuses_what_is_none(world: World, name: str) -> None:
    assert len(JSON_ROUTES) > 20
    for route in JSON_ROUTES:
        response = await world.api.http.request(
            route.method, world.path(route), content=BODIES[name], headers=world.headers(route)
        )
        message = refused(response, 400)
        if name == "a field that nobody knows":
            assert message in ("zzz: Extra inputs are not permitted", _first_required(route)), (
                route,
                message,
            )
        if name.startswith("a key twice"):
            assert message.endswith(": the key is given more than once in one object")


def _first_required(route: Route) -> str:
    takes: Any = route.takes.type if isinstance(route.takes, Optional) else route.takes
    required = [field.encode_name for field in msgspec.structs.fields(takes) if field.required]
    return f"{required[0]}: Field required" if required else ""


async def test_an_empty_body_is_refused_wherever_one_is_needed(world: World) -> None:
    # Stopping a work item ends its token, so what takes an empty body comes last.
    for route in sorted(JSON_ROUTES, key=lambda route: isinstance(route.takes, Optional)):
        for body in SPACES:
            response = await world.api.http.request(
                route.method, world.path(route), content=body, headers=world.headers(route)
            )
            if isinstance(route.takes, Optional):
                assert response.status_code in (200, 400, 404, 409, 412), (route, response.text)
            else:
                assert refused(response) == "The request body is empty; a JSON object is required"


@pytest.mark.parametrize("field", ["name", "title", "display_name", "description", "path", "environment_id"])
@pytest.mark.parametrize("value", ["a\x00b", "a\ud800b"], ids=["NUL", "a lone surrogate"])
async def test_no_text_with_nul_or_a_lone_surrogate_gets_into_the_database(
    world: World, field: str, value: str
) -> None:
    for route in JSON_ROUTES:
        takes: Any = route.takes.type if isinstance(route.takes, Optional) else route.takes
        if field not in takes.__struct_fields__:
            continue
        response = await world.api.http.request(
            route.method,
            world.path(route),
            content=json.dumps({field: value}),
            headers={"content-type": "application/json", **world.headers(route)},
        )
        if field == "description" and response.status_code == 200:
            kept = response.json()["description"]
            assert kept == "a\N{REPLACEMENT CHARACTER}b"  # free text is cleaned
        else:
            refused(response, 400, 404)


async def test_routes_that_take_no_body_do_not_mind_one(world: World) -> None:
    bare = [route for route in WRITES if route.takes is None]
    assert bare
    for route in bare:
        for body in (b"\x00", b"{", BODIES["arrays 100,000 deep"]):
            path = world.path(replace(route, path=route.path.replace("{", "none_{")))
            response = await world.api.http.request(
                route.method, path, content=body, headers=world.headers(route)
            )
            assert response.status_code < 500, (route, response.text)


@pytest.mark.parametrize("depth", [DEPTH, DEPTH * 4, 900, 5_000])
async def test_depth_is_bounded_in_free_form_fields_too(api: Api, depth: int) -> None:
    schema = '{"type":"object","default":' + "[" * depth + "]" * depth + "}"
    tool = '{"type":"custom","name":"t","description":"d","input_schema":' + schema + "}"
    body = '{"name":"a","model":"claude-opus-5-5","tools":[' + tool + "]}"
    response = await api.http.post("/v1/agents", content=body.encode())
    if response.status_code == 200:
        found = await api.get(f"/v1/agents/{response.json()['id']}")
        assert found.status_code == 200
        assert found.json()["tools"] == json.loads(body)["tools"]
    else:
        assert "nested" in refused(response)


@pytest.mark.parametrize(
    "content_type",
    ["", "text/plain", "application/xml", "application/json; charset=utf-16", "\xff", "a" * 9000],
)
async def test_a_body_is_read_as_json_whatever_its_type_says(api: Api, content_type: str) -> None:
    body = b'{"name": "a", "model": "claude-opus-5-5"}'
    response = await api.http.post(
        "/v1/agents", content=body, headers={b"content-type": content_type.encode("latin-1")}
    )
    assert response.status_code == 200


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate, gzip", "none of them"])
async def test_a_compressed_body_is_refused_by_name(api: Api, coding: str) -> None:
    response = await api.http.post(
        "/v1/agents", content=zlib.compress(b"{}"), headers={"content-encoding": coding}
    )
    assert refused(response).startswith("content-encoding: ")


async def test_a_form_wants_a_form(world: World) -> None:
    forms = [route for route in WRITES if isinstance(route.takes, Form)]
    assert forms
    boundary = "multipart/form-data; boundary=x"
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    bodies: list[tuple[str, bytes]] = [
        ("application/json", b"{}"),
        ("", b""),
        ("multipart/form-data", head + b"a\r\n--x--\r\n"),
        (f"multipart/form-data; boundary={'x' * 500}", b""),
        (boundary, b""),
        (boundary, b"\x00" * 100),
        (boundary, head),
        (boundary, head + b"cut off"),
        (boundary, head.replace(b'name="file"; ', b"") + b"a\r\n--x--\r\n"),
        (boundary, b"--x\r\n" + b"A: " + b"b" * 1_000_000),
        (boundary, b"--x\r\nContent-Disposition: form-data; name=zzz\r\n\r\na\r\n--x--\r\n"),
        (
            boundary,
            b"".join(b'--x\r\nContent-Disposition: form-data; name="a%d"\r\n\r\n\r\n' % n for n in range(99)),
        ),
    ]
    for route in forms:
        for content_type, body in bodies:
            response = await world.api.http.post(
                world.path(route),
                content=body,
                headers={"content-type": content_type, **world.headers(route)},
            )
            refused(response, 400, 404)


async def test_bytes_may_be_anything(world: World) -> None:
    for route in (route for route in WRITES if isinstance(route.takes, Bytes)):
        response = await world.api.http.post(
            world.path(route), params={"path": "a.bin"}, content=b"\x00\xff", headers=world.headers(route)
        )
        assert response.status_code in (200, 400, 404), response.text


async def test_32_mb_are_read_and_one_byte_more_is_not(api: Api) -> None:
    frame = b'{"name":"","model":"claude-opus-5-5"}'
    full = frame[:9] + b"a" * (BODY_BYTES - len(frame)) + frame[9:]
    assert len(full) == BODY_BYTES
    exact = await api.http.post("/v1/agents", content=full)
    assert refused(exact) == "name: must have at most 256 characters"
    over = await api.http.post("/v1/agents", content=full + b" ")
    assert refused(over, 413) == f"Request body exceeds the maximum of {BODY_BYTES} bytes"


async def test_chunks_without_end_are_cut_off_and_kept_nowhere(api: Api) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 2**20

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        response = await api.http.post("/v1/agents", content=endless())
        refused(response, 413)
    except (httpx.WriteError, httpx.ReadError):
        pass  # the connection was closed before the client looked for its answer
    assert 32 < sent < 200
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 160, f"{grown} MB"
