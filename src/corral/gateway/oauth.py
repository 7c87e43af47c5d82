"""The exchange of a refresh token for a new access token (RFC 6749 section 6)."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote_plus

import httpx2
import msgspec

from corral.gateway.addresses import Reach
from corral.gateway.http import CheckedTransport, client_for
from corral.gateway.scrubbing import Scrubber
from corral.wire.credentials import Refresh, SecretField
from corral.wire.gateway import HttpResponse
from corral.wire.secret import Secret

ENDPOINT_SECONDS: Final = 15.0

_LONGEST_LIFE: Final = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The endpoint gave an access token; the refresh token is None where the old one stays in use."""

    access: Secret
    refresh: Secret | None
    expires_in: float | None
    """Seconds; None if the endpoint did not say."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The endpoint answered, and gave no token."""

    response: HttpResponse

    @property
    def final(self) -> bool:
        """Whether trying again cannot help: the endpoint refused the grant, as opposed to being unwell."""
        return self.response.status_code < 500 and self.response.status_code != 429


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The endpoint did not answer, or agents may not reach it."""

    reason: str


Exchanged: TypeAlias = NewTokens | Rejected | Unreachable


async def exchange(reach: Reach, refresh: Refresh, secrets: Mapping[SecretField, Secret]) -> Exchanged:
    """Ask the credential's token endpoint for a new access token. The caller sees that one asks at a time."""
    form = {"grant_type": "refresh_token", "refresh_token": secrets["refresh_token"].reveal()}
    if refresh.scope:
        form["scope"] = refresh.scope
    if refresh.resource:
        form["resource"] = refresh.resource
    headers = {"accept": "application/json"}
    match refresh.token_endpoint_auth.type:
        case "none":
            form["client_id"] = refresh.client_id
        case "client_secret_post":
            form |= {"client_id": refresh.client_id, "client_secret": secrets["client_secret"].reveal()}
        case "client_secret_basic":
            pair = f"{quote_plus(refresh.client_id)}:{quote_plus(secrets['client_secret'].reveal())}"
            headers["authorization"] = "Basic " + b64encode(pair.encode()).decode()
    transport = CheckedTransport(reach, refresh.token_endpoint)
    try:
        async with client_for(transport, seconds=ENDPOINT_SECONDS) as client:
            response = await client.post(refresh.token_endpoint, data=form, headers=headers)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Unreachable(str(error) or type(error).__name__)
    return _read(response, Scrubber(secrets.values()))


def _read(response: httpx2.Response, scrubber: Scrubber) -> Exchanged:
    try:
        answer = msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.DecodeError:
        answer = dict[str, Any]()
    access, refresh = answer.get("access_token"), answer.get("refresh_token")
    if not response.is_success or not isinstance(access, str) or not access:
        return Rejected(scrubber.response(response))
    return NewTokens(
        Secret(access),
        Secret(refresh) if isinstance(refresh, str) and refresh else None,
        _seconds(answer.get("expires_in")),
    )


def _seconds(value: Any) -> float | None:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return min(seconds, _LONGEST_LIFE) if seconds > 0 else None
