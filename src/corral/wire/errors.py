"""Every error that reaches a client, as one tree (contract section 2.2).

ApiError                          HTTP  error.type               a retry may help
├── InvalidRequest                400   invalid_request_error    no
├── AuthenticationFailed          401   authentication_error     no
├── PermissionDenied              403   permission_error         no
├── NotFound                      404   not_found_error          no
├── MethodNotAllowed              405   invalid_request_error    no
├── RequestTimeout                408   timeout_error            yes
├── Conflict                      409   conflict_error           no
│   ├── MemoryPathConflict        409   memory_path_conflict_error        no
│   └── MemoryPreconditionFailed  409   memory_precondition_failed_error  no
├── PreconditionFailed            412   invalid_request_error    no
├── RequestTooLarge               413   request_too_large        no
├── HeadTooLarge                  431   invalid_request_error    no
├── RateLimited                   429   rate_limit_error         yes, after ``retry_after`` seconds
├── InternalError                 500   api_error                yes
└── Overloaded                    529   overloaded_error         yes, after ``retry_after`` seconds

``x-should-retry`` is sent with each: the official SDKs retry 409 and 5xx of their own accord
unless told otherwise (contract section 2.2).
"""

from typing import Any, ClassVar

import msgspec


class ApiError(Exception):
    """An error in the documented envelope. ``message`` is for people; ``error_code`` for programs."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "api_error"
    should_retry: ClassVar[bool] = False
    extra_fields: ClassVar[tuple[str, ...]] = ()
    """The names of what `fields` gives."""

    def __init__(
        self,
        message: str,
        *,
        error_code: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = dict(details or {})
        if error_code is not None:
            self.details = {"error_code": error_code, **self.details}
        self.retry_after = retry_after

    def body(self, request_id: str | None) -> bytes:
        """The error envelope as JSON bytes."""
        error: dict[str, Any] = {"type": self.type, "message": self.message}
        if self.details:
            error["details"] = self.details
        error.update(self.fields())
        return msgspec.json.encode({"type": "error", "error": error, "request_id": request_id})

    def fields(self) -> dict[str, str]:
        """What the error object of this type has beside ``type``, ``message`` and ``details``."""
        return {}


class InvalidRequest(ApiError):
    """The request cannot be carried out as it stands; the message names the field's path."""

    status, type = 400, "invalid_request_error"


class AuthenticationFailed(ApiError):
    """No credential, or one that is unknown or revoked; the two are answered alike."""

    status, type = 401, "authentication_error"

    def __init__(self) -> None:
        super().__init__("Authentication failed")


class PermissionDenied(ApiError):
    """The credential is good, but not for this."""

    status, type = 403, "permission_error"


class NotFound(ApiError):
    """The thing named does not exist, or not for this credential."""

    status, type = 404, "not_found_error"


class MethodNotAllowed(ApiError):
    """The path exists, the method does not."""

    status, type = 405, "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("Method Not Allowed")


class RequestTimeout(ApiError):
    """The request stopped coming."""

    status, type, should_retry = 408, "timeout_error", True


class Conflict(ApiError):
    """The state of the thing forbids the change; sending the same again cannot help."""

    status, type = 409, "conflict_error"


class MemoryPathConflict(Conflict):
    """The path is that of another memory, or one of the two would lie below the other."""

    type = "memory_path_conflict_error"
    extra_fields = ("conflicting_memory_id", "conflicting_path")

    def __init__(self, message: str, *, memory_id: str, path: str) -> None:
        super().__init__(message)
        self.memory_id = memory_id
        self.path = path

    def fields(self) -> dict[str, str]:
        """Which memory is in the way, and where it is."""
        return {"conflicting_memory_id": self.memory_id, "conflicting_path": self.path}


class MemoryPreconditionFailed(Conflict):
    """The memory's content is not the one that the request was made for."""

    type = "memory_precondition_failed_error"


class PreconditionFailed(ApiError):
    """A precondition that the request carried does not hold (a lost work lease)."""

    status, type = 412, "invalid_request_error"


class RequestTooLarge(ApiError):
    """The body is larger than the API takes (32 MB of JSON)."""

    status, type = 413, "request_too_large"


class HeadTooLarge(ApiError):
    """The request line and the headers are larger than the API takes (64 KiB)."""

    status, type = 431, "invalid_request_error"


class RateLimited(ApiError):
    """Too many requests; ``retry_after`` says when to come back."""

    status, type, should_retry = 429, "rate_limit_error", True


class InternalError(ApiError):
    """A fault of the server. The message carries nothing of its inside; the log has the request id."""

    status, type, should_retry = 500, "api_error", True


class Overloaded(ApiError):
    """The server, or what it depends on, cannot take this now."""

    status, type, should_retry = 529, "overloaded_error", True
