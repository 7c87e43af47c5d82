"""The errors in the OpenAPI document: one response for each status, and which of them a route has."""

from collections.abc import Iterator
from typing import Any, Final

from corral.api.routing import Route
from corral.wire.errors import (
    ApiError,
    AuthenticationFailed,
    HeadTooLarge,
    InternalError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
    RequestTooLarge,
)

_ALWAYS: Final[tuple[type[ApiError], ...]] = (
    InvalidRequest,
    RequestTimeout,
    HeadTooLarge,
    InternalError,
    Overloaded,
)
_WITH_CREDENTIAL: Final[tuple[type[ApiError], ...]] = (
    AuthenticationFailed,
    PermissionDenied,
    NotFound,
    RateLimited,
)
_HEADERS: Final[dict[str, Any]] = {
    "request-id": {"description": "The id of this request.", "schema": {"type": "string"}},
    "corral-version": {"description": "The version of the server.", "schema": {"type": "string"}},
    "x-should-retry": {
        "description": "Whether sending the same again may help.",
        "schema": {"enum": ["true", "false"]},
    },
    "retry-after": {"description": "Seconds to wait first.", "schema": {"type": "integer", "minimum": 1}},
}


def refusals(route: Route) -> dict[str, Any]:
    """The responses of a route besides its answer, by status."""
    errors = [*_ALWAYS, *(_WITH_CREDENTIAL if route.callers else ()), *route.refuses]
    if "{" in route.path:
        errors.append(NotFound)
    if route.takes is not None:
        errors.append(RequestTooLarge)
    statuses = sorted({error.status for error in errors})
    return {str(status): {"$ref": f"#/components/responses/{_name(status)}"} for status in statuses}


def headers() -> dict[str, Any]:
    """The headers of responses; the first two are those of every one."""
    return _HEADERS


def responses() -> dict[str, Any]:
    """Each error response, by the name that `refusals` refers to it with."""
    by_status: dict[int, list[type[ApiError]]] = {}
    for error in _tree(ApiError):
        by_status.setdefault(error.status, []).append(error)
    return {_name(status): _response(errors) for status, errors in sorted(by_status.items())}


def _name(status: int) -> str:
    return f"Error{status}"


def _tree(error: type[ApiError]) -> Iterator[type[ApiError]]:
    # The wire's own tree alone: a kind that is derived elsewhere answers with the type of its parent.
    for kind in error.__subclasses__():
        if kind.__module__ == ApiError.__module__:
            yield kind
            yield from _tree(kind)


def _response(errors: list[type[ApiError]]) -> dict[str, Any]:
    text = {"type": "string"}
    own: dict[str, Any] = {name: text for error in errors for name in error.extra_fields}
    error: dict[str, Any] = {
        "type": "object",
        "properties": {
            "type": {"enum": list(dict.fromkeys(error.type for error in errors))},
            "message": {**text, "description": "For people; begins with the path of the field at fault."},
            "details": {
                "type": "object",
                "description": "For programs: `error_code`, and what else belongs to it.",
                "properties": {"error_code": text},
            },
            **own,
        },
        "required": ["type", "message"],
        "additionalProperties": False,
    }
    envelope: dict[str, Any] = {
        "type": "object",
        "properties": {
            "type": {"const": "error"},
            "error": error,
            "request_id": {**text, "description": "The same as in the `request-id` header."},
        },
        "required": ["type", "error", "request_id"],
        "additionalProperties": False,
    }
    sent = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    about = " ".join((error.__doc__ or "").strip().split("\n")[0] for error in errors)
    return {"description": about, "headers": sent, "content": {"application/json": {"schema": envelope}}}
