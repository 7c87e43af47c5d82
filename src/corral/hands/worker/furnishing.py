"""What a sandbox gets beside the workspace and files, when it is started: variables, and its way out."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from corral.hands.sandbox import way_out
from corral.hands.sandbox.provider import Egress, SandboxUnavailable
from corral.hands.worker.client import WorkApi
from corral.hands.worker.doors import Doors
from corral.hands.worker.failures import ApiFailure
from corral.wire.secret import Secret

# By these a sandbox works; nobody may replace them.
_TAKEN: Final = frozenset(
    {"HOME", "PATH", "SHELL", "USER", "TERM", "LANG", "TZ", "IFS", "ENV", "BASH_ENV", "NODE_OPTIONS"}
) | frozenset(way_out.variables())

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Furnishing:
    """What a sandbox has: variables, and its way out if it has one."""

    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    egress: Egress | None = None


Furnish = Callable[[], Awaitable[Furnishing]]
"""Asked when a sandbox is about to be started. Raises `SandboxUnavailable`."""


async def furnish(api: WorkApi, doors: Doors, session_id: str, token: Secret) -> Furnishing:
    """What the server says that the session's sandbox is to have, with its door opened for this token.

    Raises:
        SandboxUnavailable: the server does not say, or the door cannot be opened.
    """
    try:
        plan = await api.sandbox_plan(session_id, token)
    except ApiFailure as failure:
        raise SandboxUnavailable(f"the server does not say what is to be in it: {failure}") from failure
    variables = admissible(plan.environment)
    if plan.way is None:
        return Furnishing(variables)
    try:
        door = await doors.open(session_id, plan.way, token)
    except OSError as error:
        raise SandboxUnavailable(f"its way out cannot be opened: {error}") from error
    return Furnishing(variables, Egress(door, plan.way.certificate))


def admissible(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables but for those by which a sandbox works, or by which its programs load others."""
    kept: dict[str, str] = {}
    for name, value in variables.items():
        if name in _TAKEN or name.startswith(("LD_", "PYTHON", "GIT_CONFIG")):
            _log.warning("a variable is left out: the sandbox needs its own", variable=name)
        else:
            kept[name] = value
    return kept
