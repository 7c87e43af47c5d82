"""How a server asks the gateway: over HTTP, with a grant made for the occasion."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import httpx
import msgspec

from corral.settings import Gateway
from corral.store.database import Database
from corral.vault.grants import Grants
from corral.wire import gateway as wire
from corral.wire.errors import Overloaded
from corral.wire.gateway import GatewayUnavailable, NotGranted
from corral.wire.secret import Secret

_VALIDATION_SECONDS: Final = 150.0
_CONNECT_SECONDS: Final = 10.0
_CANCEL_SECONDS: Final = 5.0

T = TypeVar("T")


class GatewayClient:
    """Speaks to the gateway at `url`. Close it with `close`."""

    def __init__(self, url: str, grants: Grants, *, call_seconds: float) -> None:
        self.grants: Final = grants
        # The gateway gives a call up by itself; this is for when it does not.
        self._call_seconds = call_seconds + _VALIDATION_SECONDS
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            trust_env=False,
            timeout=httpx.Timeout(_VALIDATION_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def validate(self, credential_id: str) -> wire.Validation:
        """Try a credential's OAuth token out (contract section 15.4).

        Raises:
            Overloaded: the gateway cannot be reached.
        """
        grant = await self.grants.for_validation(credential_id)
        try:
            return await self.ask(wire.VALIDATE_PATH, grant, None, wire.Validation)
        except GatewayUnavailable as error:
            raise Overloaded(f"The credential could not be tried: {error}.", retry_after=1) from None

    async def grant(self, session_id: str, epoch: int) -> Secret:
        """See `corral.brain.mcp_shelf.McpGateway`."""
        return await self.grants.for_session(session_id, epoch)

    async def revoke(self, grant: Secret) -> None:
        """See `corral.brain.mcp_shelf.McpGateway`."""
        await self.grants.revoke(grant)

    async def tools(self, grant: Secret, server_name: str, thread_id: str | None = None) -> wire.ToolsAnswer:
        """See `corral.brain.mcp_shelf.McpGateway`."""
        asked = wire.ToolsRequest(server_name=server_name, thread_id=thread_id)
        return await self.ask(wire.TOOLS_PATH, grant, asked, wire.ToolsAnswer)

    async def call(self, grant: Secret, event_id: str) -> wire.CallOutcome:
        """See `corral.brain.mcp_shelf.McpGateway`."""
        asked = wire.CallRequest(event_id=event_id)
        return await self.ask(wire.CALL_PATH, grant, asked, wire.CallOutcome, seconds=self._call_seconds)

    async def cancel(self, grant: Secret, event_id: str) -> None:
        """See `corral.brain.mcp_shelf.McpGateway`."""
        asked = wire.CancelRequest(event_id=event_id)
        await self.ask(wire.CANCEL_PATH, grant, asked, dict[str, object], seconds=_CANCEL_SECONDS)

    async def ask(
        self, path: str, grant: Secret, body: object, kind: type[T], *, seconds: float | None = None
    ) -> T:
        """Make one request; `seconds` bounds the wait for its answer.

        Raises:
            NotGranted: the grant is not accepted.
            GatewayUnavailable: there is no answer, or it is an error.
        """
        timeout = httpx.Timeout(seconds or _VALIDATION_SECONDS, connect=_CONNECT_SECONDS)
        try:
            answer = await self._http.post(
                path,
                content=msgspec.json.encode(body),
                headers={"authorization": f"Bearer {grant.reveal()}"},
                timeout=timeout,
            )
        except httpx.HTTPError as error:
            raise GatewayUnavailable(f"the gateway does not answer ({type(error).__name__})") from None
        if answer.status_code == 401:
            raise NotGranted("the gateway does not accept the grant")
        if answer.status_code != 200:
            raise GatewayUnavailable(f"the gateway answered {answer.status_code}: {_message(answer)}")
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.DecodeError as error:
            raise GatewayUnavailable(f"the gateway's answer is not understood: {error}") from None


@asynccontextmanager
async def gateway_client(settings: Gateway, database: Database) -> AsyncGenerator[GatewayClient | None]:
    """A client of the gateway that the settings name; None where a server has no gateway."""
    if settings.url is None:
        yield None
        return
    client = GatewayClient(settings.url, Grants(database), call_seconds=settings.call_seconds)
    try:
        yield client
    finally:
        await client.close()


def _message(answer: httpx.Response) -> str:
    class _Error(msgspec.Struct):
        message: str

    class _Envelope(msgspec.Struct):
        error: _Error

    try:
        return msgspec.json.decode(answer.content, type=_Envelope).error.message
    except msgspec.DecodeError:
        return "no more is known"
