"""Generates requests for each route from the OpenAPI document, sends them, and judges the answers.

Half of the requests fit the document, half break it somewhere. Most are about things that exist: ids that the
document knows only as texts are swapped for real ones, so that a request gets past the first 404. Nothing may
be answered with a 5xx, an undeclared status, another media type or a body that contradicts its schema.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks
from schemathesis.core.failures import FailureGroup

from corral.api.app import ROUTES
from corral.api.describe import Stream
from corral.api.routing import Route
from tests.conforming import DOCUMENT
from tests.populated import World

_CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
_MODES: Final = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
_SECONDS: Final = 20
# After these the thing is as good as gone: they come last, and mostly about things that are not there.
_ENDINGS: Final = ("/archive", "/redact", "/stop")


def in_order(routes: Sequence[Route] = ROUTES) -> list[Route]:
    """The routes, those that end something last."""
    return sorted(routes, key=_ends)


def _ends(route: Route) -> bool:
    return route.method == "DELETE" or route.path.endswith(_ENDINGS)


class Fuzzer:
    """Sends generated requests to a world. Equal seeds send equal requests to equal worlds."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._schema: Any = schemathesis.openapi.from_dict(DOCUMENT)
        known: Any = checks
        known.load_all_checks()
        self._checks = known.CHECKS.get_by_names(list(_CHECKS))
        self.sent = 0
        self.statuses: dict[int, int] = {}

    def faults(self, route: Route, examples: int) -> list[str]:
        """What is wrong with the answers of one route."""
        return [fault for mode in _MODES for fault in self._of_mode(route, mode, examples)]

    def _of_mode(self, route: Route, mode: GenerationMode, examples: int) -> Iterator[str]:
        operation = self._schema[route.path][route.method]
        found: list[str] = []

        @hypothesis.seed(self._seed)
        @hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list[Any](HealthCheck),
        )
        @hypothesis.given(operation.as_strategy(generation_mode=mode), strategies.integers(0, 2**32))
        def attempt(case: Any, chance: int) -> None:
            found.extend(self._tried(route, case, random.Random(chance)))

        with requests.Session() as self._session:
            try:
                attempt()
            except Unsatisfiable:
                pass  # nothing of this route can be broken
        yield from dict.fromkeys(found)

    def _tried(self, route: Route, case: Any, chance: random.Random) -> Iterator[str]:
        ids = self._world.own(route)
        path: dict[str, Any] = case.path_parameters or {}
        for name in path:
            if name in ids and chance.random() < (0.2 if _ends(route) else 0.9):
                path[name] = ids[name]
        if chance.random() < 0.8:
            case.body = _with_real_ids(case.body, ids)
        if "block_ms" in (case.query or {}):
            case.query["block_ms"] = 1  # a poll may wait for half a minute
        for header in ("Authorization", "x-api-key"):
            case.headers.pop(header, None)
        case.headers.update(self._world.headers(route))
        try:
            asked = case.as_transport_kwargs(base_url=self._world.api.base_url)
            response = self._session.request(**asked, stream=True, timeout=_SECONDS)
        except (UnicodeError, requests.exceptions.InvalidHeader):
            return  # the client cannot send it
        with response:
            self.sent += 1
            self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
            if isinstance(route.gives, Stream) and response.status_code == 200:
                return  # it goes on until somebody ends it
            try:
                case.validate_response(response, checks=self._checks)
            except FailureGroup as group:
                for failure in group.exceptions:
                    yield f"{route.method} {route.path}: {_told(failure)}\n  {case.as_curl_command()[:3000]}"


def _told(failure: BaseException) -> str:
    return str(failure).replace("\n", "\n  ")[:1500]


_LISTS: Final = {"vault_ids": "vault_id"}


def _with_real_ids(value: Any, ids: dict[str, str]) -> Any:
    """The body with ids of things that exist wherever it names one."""
    if isinstance(value, list):
        return [_with_real_ids(item, ids) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    body = cast("dict[str, Any]", value)
    changed: dict[str, Any] = {}
    for key, item in body.items():
        if isinstance(item, str) and (known := ids.get(key, ids.get(f"{key}_id"))):
            changed[key] = known
        elif key in _LISTS and isinstance(item, list):
            changed[key] = [ids[_LISTS[key]]] if item else []
        elif key == "id" and isinstance(item, str) and str(body.get("type", "")).startswith("agent"):
            changed[key] = ids["agent_id"]
        else:
            changed[key] = _with_real_ids(item, ids)
    return changed
