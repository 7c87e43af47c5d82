"""What may go wrong for a worker.

    WorkerError             the worker ends; the text is for the operator and says what to do
      WorkerMisconfigured   a setting is missing, or contradicts another
      CredentialRefused     the server does not take the worker's key
    ApiFailure              one request failed; `may_pass` tells whether to repeat it

A sandbox that cannot be started ends the worker by `corral.hands.sandbox.provider.SandboxUnavailable`.
"""

from collections.abc import Mapping
from typing import Any, Final

_MAY_PASS: Final = frozenset({408, 409, 429})


class WorkerError(Exception):
    """The worker cannot go on. The text says what to do."""


class WorkerMisconfigured(WorkerError):
    """The settings do not say whom to work for, or say two things."""


class CredentialRefused(WorkerError):
    """The server refused to hand out work: the key is wrong, revoked, or for something else."""


class ApiFailure(Exception):
    """A request that was not answered with success.

    status: the HTTP status, None if no answer came. retry_after: seconds that the server asked to wait.
    details: `error.details` of the answer.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.details: Mapping[str, Any] = details or {}

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status is None or self.status in _MAY_PASS or self.status >= 500
