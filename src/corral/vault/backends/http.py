"""Requests to a secret manager, and what its answers mean. No body is ever part of an error."""

from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from corral.vault.backends.backend import BackendFailed

_SECONDS: Final = 10.0
_REFUSED: Final = (400, 401, 403, 404, 405, 409)


def client() -> httpx.AsyncClient:
    """A client for one manager: no proxy and no credential from the environment, no redirects."""
    return httpx.AsyncClient(timeout=_SECONDS, trust_env=False)


async def asked(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    manager: str,
    advice: str,
    headers: Mapping[str, str],
    json: object = None,
    content: bytes | None = None,
    missing_is_fine: bool = False,
) -> Any:
    """The answer to a request as JSON, None for an empty one (or a missing thing, where that is fine).

    Raises:
        BackendFailed: the manager cannot be reached, refuses, or is unwell; ``advice`` says what to do about
            a refusal.
    """
    try:
        response = await http.request(method, url, headers=headers, json=json, content=content)
    except httpx.HTTPError as error:
        raise BackendFailed(
            f"{manager} cannot be reached ({type(error).__name__}); see that it runs and that this machine "
            "may connect to it",
            lasting=False,
        ) from None
    if response.status_code == 404 and missing_is_fine:
        return None
    if not response.is_success:
        lasting = response.status_code in _REFUSED
        said = f"{manager} answered {response.status_code} to {method}"
        raise BackendFailed(f"{said}; {advice}" if lasting else said, lasting=lasting)
    try:
        return msgspec.json.decode(response.content) if response.content else None
    except msgspec.DecodeError:
        raise BackendFailed(f"{manager} answered with something that is not JSON", lasting=True) from None
