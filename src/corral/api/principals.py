"""Who calls: one kind of principal for each kind of credential, and what each may see.

A thing that a credential must not see reads as if it did not exist (404), so that ids tell nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from corral.api.services import Services
from corral.hands.work import Claim
from corral.hands.work_token import PREFIX
from corral.wire.errors import AuthenticationFailed

_KEY_LENGTH: Final = 512


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An application, or the operator: everything but the workers' part of the work API."""

    key_id: str


@dataclass(frozen=True, slots=True)
class EnvironmentKey:
    """A worker of one environment."""

    key_id: str
    environment_id: str


@dataclass(frozen=True, slots=True)
class PoolKey:
    """A worker of the operator's pool, for every ``cloud`` environment."""

    key_id: str


@dataclass(frozen=True, slots=True)
class WorkToken:
    """Whoever holds one work item: its session and its environment, nothing else."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class FormerWorkToken(WorkToken):
    """Whoever held a work item until it was stopped or claimed again: it may ask what became of it."""


Principal: TypeAlias = ApiKey | EnvironmentKey | PoolKey | WorkToken
Kind: TypeAlias = type[ApiKey] | type[EnvironmentKey] | type[PoolKey] | type[WorkToken]

APPLICATION: Final[frozenset[Kind]] = frozenset({ApiKey})
WORKER: Final[frozenset[Kind]] = frozenset({EnvironmentKey, PoolKey, WorkToken})
ANYONE: Final[frozenset[Kind]] = APPLICATION | WORKER
# Nobody needs to be known: the route is open.
OPEN: Final[frozenset[Kind]] = frozenset()


def credential(headers: Mapping[str, str]) -> str | None:
    """The credential of a request: ``Authorization: Bearer`` or ``x-api-key``, whatever its kind."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key", "").strip() or None


async def authenticate(services: Services, token: str | None, callers: frozenset[Kind]) -> Principal:
    """The principal of a credential. It is looked up anew each time, so revoking works at once.

    A token that is no longer good is as unknown as any, but where ``callers`` name its former holder.

    Raises:
        AuthenticationFailed: there is none, or it is unknown, revoked or outlived; all are answered alike.
    """
    if token is None or len(token) > _KEY_LENGTH:
        raise AuthenticationFailed
    if token.startswith(PREFIX):
        if claim := await services.work.verify_token(token):
            return WorkToken(claim)
        if FormerWorkToken in callers and (former := await services.work.verify_former_token(token)):
            return FormerWorkToken(former)
        raise AuthenticationFailed
    key = await services.keys.verify(token)
    if key is None:
        raise AuthenticationFailed
    match key.kind:
        case "api":
            return ApiKey(key.id)
        case "pool":
            return PoolKey(key.id)
        case "environment":
            assert key.environment_id is not None
            return EnvironmentKey(key.id, key.environment_id)
