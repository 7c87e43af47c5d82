"""``mcp_oauth_validate``: tries an OAuth token out on its MCP server (contract section 15.4).

Spoken here request by request, not through the MCP client, since what is wanted is the HTTP answer of the
step that failed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import httpx2
import msgspec

from corral.gateway.addresses import Reach
from corral.gateway.http import CheckedTransport, client_for
from corral.gateway.oauth import NewTokens, Rejected, Unreachable
from corral.gateway.scrubbing import Scrubber
from corral.gateway.tokens import Held, NoToken, Tokens
from corral.wire.credentials import Credential, OAuth
from corral.wire.gateway import Probe, Refreshed, Validation
from corral.wire.secret import Secret

PROTOCOL_VERSION: Final = "2025-06-18"

_STEP_SECONDS: Final = 15.0
_EVENT_BYTES: Final = 1024 * 1024
_SESSION: Final = "mcp-session-id"
_CLIENT: Final = {"name": "corral", "version": "1"}

Status = Literal["valid", "invalid", "unknown"]


@dataclass(frozen=True, slots=True)
class _Failed:
    """The step that failed; `status` is None where the server gave no answer."""

    probe: Probe
    status: int | None

    @property
    def refused(self) -> bool:
        """The server refused the token."""
        return self.status in (401, 403)


async def validate(credential: Credential, at: str, tokens: Tokens, reach: Reach) -> Validation:
    """Whether the credential's token works now; a refused one is renewed and tried again. `at`: the time.

    The credential is of OAuth and not archived, which the caller sees to.
    """
    auth = credential.auth
    assert isinstance(auth, OAuth)

    def result(
        status: Status, failed: _Failed | None, refreshed: Refreshed | None, renewable: bool
    ) -> Validation:
        return Validation(
            credential_id=credential.id,
            vault_id=credential.vault_id,
            validated_at=at,
            has_refresh_token=renewable,
            status=status,
            mcp_probe=None if failed is None else failed.probe,
            refresh=refreshed,
        )

    try:
        held = await tokens.present(credential)
    except NoToken:
        return result("invalid", None, None, False)
    failed = await _probe(auth.mcp_server_url, held, reach)
    if failed is None:
        return result("valid", None, None, held.renewable)
    if not failed.refused:
        return result("unknown", failed, None, held.renewable)
    if not held.renewable:
        return result("invalid", failed, Refreshed(status="no_refresh_token"), False)
    match await tokens.renew(credential.id, held.token):
        case Rejected() as rejected:
            refreshed = Refreshed(status="failed", http_response=rejected.response)
            return result("invalid" if rejected.final else "unknown", failed, refreshed, True)
        case Unreachable():
            return result("unknown", failed, Refreshed(status="connect_error"), True)
        case NewTokens() | None:
            again = await _probe(auth.mcp_server_url, await tokens.present(credential), reach)
    refreshed = Refreshed(status="succeeded")
    if again is None:
        return result("valid", None, refreshed, True)
    return result("invalid" if again.refused else "unknown", again, refreshed, True)


async def _probe(url: str, held: Held, reach: Reach) -> _Failed | None:
    transport = CheckedTransport(reach, url)
    async with client_for(transport, seconds=_STEP_SECONDS) as client:
        prober = _Prober(client, url, held.token, held.scrubber)
        opening = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": _CLIENT}
        failed = await prober.asks("initialize", opening)
        if failed is None:
            await prober.tells("notifications/initialized")
            failed = await prober.asks("tools/list", {})
        await prober.leaves()
        return failed


class _Prober:
    """One conversation with an MCP server, by plain requests."""

    def __init__(self, client: httpx2.AsyncClient, url: str, token: Secret, scrubber: Scrubber) -> None:
        self._client = client
        self._url = url
        self._scrubber = scrubber
        self._next_id = 1
        self._headers = {
            "authorization": f"Bearer {token.reveal()}",
            "accept": "application/json, text/event-stream",
        }

    async def asks(self, method: str, params: Mapping[str, Any]) -> _Failed | None:
        """Make a request of the protocol; what failed, or None."""
        body = {"jsonrpc": "2.0", "id": self._next_id, "method": method, "params": params}
        self._next_id += 1
        try:
            async with self._client.stream("POST", self._url, json=body, headers=self._headers) as response:
                if response.status_code >= 300:
                    await response.aread()
                    shown = self._scrubber.response(response)
                    return _Failed(Probe(method=method, http_response=shown), response.status_code)
                if (session := response.headers.get(_SESSION)) is not None:
                    self._headers[_SESSION] = session
                if method == "initialize":
                    self._headers["mcp-protocol-version"] = PROTOCOL_VERSION
                if "error" not in await _message(response):
                    return None
        except (httpx2.HTTPError, httpx2.InvalidURL, msgspec.DecodeError):
            pass
        return _Failed(Probe(method=method, http_response=None), None)

    async def tells(self, method: str) -> None:
        """Send a notification; what the server makes of it shows in the next request."""
        body = {"jsonrpc": "2.0", "method": method}
        await self._quietly("POST", json=body)

    async def leaves(self) -> None:
        """End the conversation where the server keeps one."""
        if _SESSION in self._headers:
            await self._quietly("DELETE")

    async def _quietly(self, verb: str, **content: Any) -> None:
        try:
            await self._client.request(verb, self._url, headers=self._headers, **content)
        except httpx2.HTTPError:
            return  # a courtesy: the verdict does not depend on it


async def _message(response: httpx2.Response) -> dict[str, Any]:
    """The server's message: the body, or the first event with an answer."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return msgspec.json.decode(await response.aread(), type=dict[str, Any])
    async for event in httpx2.EventSource(response, max_event_size=_EVENT_BYTES):
        if event.data:
            message = msgspec.json.decode(event.data, type=dict[str, Any])
            if "result" in message or "error" in message:
                return message
    return {"error": "the stream ended"}
