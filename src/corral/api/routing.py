"""Routes: a method, a path, who may call, and what answers. A path with several methods is several routes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from corral.api.call import Handler
from corral.api.describe import Gives, Parameters, Takes
from corral.api.principals import Kind
from corral.wire.errors import ApiError, MethodNotAllowed, NotFound

# What an id may be made of. Anything else in its place cannot name anything.
_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@dataclass(frozen=True, slots=True)
class Route:
    """One route. ``callers`` are the kinds of principal that may call it; empty means that it is open.

    The fields behind the handler describe the route (see `corral.api.describe`): ``says`` in a few words what
    it does, ``query`` its parameters, ``takes`` its body, ``gives`` what it answers with, ``refuses`` the
    errors besides those that every route may answer with.
    """

    method: str
    path: str
    callers: frozenset[Kind]
    handler: Handler
    says: str = ""
    query: Parameters = ()
    takes: Takes = None
    gives: Gives = None
    refuses: tuple[type[ApiError], ...] = ()

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path; those in braces are parameters."""
        return tuple(self.path.strip("/").split("/"))


class RouteTable:
    """Finds the route of a request. Fixed segments win over parameters."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._paths: dict[int, dict[tuple[str, ...], dict[str, Route]]] = {}
        for route in self.routes:
            methods = self._paths.setdefault(len(route.segments), {}).setdefault(_shape(route.segments), {})
            if route.method in methods:
                raise ValueError(f"{route.method} {route.path} is declared twice")
            methods[route.method] = route
        for size, paths in self._paths.items():
            # Parameters sort behind fixed segments.
            self._paths[size] = dict(sorted(paths.items(), key=lambda item: [s == "{}" for s in item[0]]))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route, and the values of its parameters by name.

        Raises:
            NotFound: no route has this path.
            MethodNotAllowed: one has, with another method.
        """
        segments = tuple(path.removeprefix("/").split("/"))
        known = False
        for shape, methods in self._paths.get(len(segments), {}).items():
            if all(
                want in (got, "{}") and (want != "{}" or got)
                for want, got in zip(shape, segments, strict=True)
            ):
                known = True
                if method in methods:
                    return methods[method], _values(methods[method].segments, segments)
        if known:
            raise MethodNotAllowed
        raise NotFound("Not found")


def _shape(segments: tuple[str, ...]) -> tuple[str, ...]:
    return tuple("{}" if segment.startswith("{") else segment for segment in segments)


def _values(template: tuple[str, ...], segments: tuple[str, ...]) -> dict[str, str]:
    return {name[1:-1]: value for name, value in zip(template, segments, strict=True) if name.startswith("{")}


def check_ids(params: dict[str, str]) -> None:
    """Refuse what cannot be an id before it reaches a statement.

    Raises:
        NotFound: one of the values has characters, or a length, that no id has.
    """
    for name, value in params.items():
        if not _ID.fullmatch(value):
            raise NotFound(f"{name.removesuffix('_id')} not found")
