"""How the scripted model says no: one exception with status, path and reason."""

from __future__ import annotations

from typing import Any

ERROR_TYPES: dict[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Error type of the Messages API by HTTP status."""


class Refused(Exception):
    """The request breaks a rule of the Messages API.

    `path` points into the request body (`messages.3.content.0`) and is empty when the request as a whole is
    at fault; `reason` says which rule was broken. `status` is the HTTP status of the answer.
    """

    def __init__(self, path: str, reason: str, *, status: int = 400) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.path = path
        self.reason = reason
        self.status = status


def error_body(
    status: int, message: str, request_id: str, *, error_type: str | None = None
) -> dict[str, Any]:
    """The documented error envelope for `status`."""
    return {
        "type": "error",
        "error": {"type": error_type or ERROR_TYPES.get(status, "api_error"), "message": message},
        "request_id": request_id,
    }
