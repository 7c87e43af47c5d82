"""MCP for sessions: which tools a server has, and calls of them with the session's credential."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
import structlog
from mcp import MCPError

from corral.gateway.addresses import NotReachable
from corral.gateway.calls import LoggedCall
from corral.gateway.identity import Signer
from corral.gateway.mcp_connections import Connection, Connections, Unusable
from corral.gateway.mcp_results import (
    DESCRIPTION_CHARACTERS,
    described,
    error_outcome,
    outcome_of,
    shortened,
)
from corral.gateway.sessions import SessionReach, check_mcp_host
from corral.gateway.tokens import Held, NoToken, Tokens
from corral.resources.credentials import Credentials
from corral.store.database import Database
from corral.vault.grants import GrantedSession
from corral.wire.errors import NotFound
from corral.wire.gateway import CallOutcome, Failure, Tool, ToolsAnswer, listing_key

_REASON_CHARACTERS: Final = 500

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class _Failed(Exception):
    def __init__(self, failure: Failure, *, sent: bool = False) -> None:
        super().__init__(failure.message)
        self.failure: Final = failure
        self.sent: Final = sent


class McpProxy:
    """Everything that the gateway does with MCP servers."""

    def __init__(
        self,
        *,
        database: Database,
        credentials: Credentials,
        tokens: Tokens,
        reach: SessionReach,
        connections: Connections,
        signer: Signer | None = None,
    ) -> None:
        self._database = database
        self._credentials = credentials
        self._tokens = tokens
        self._reach = reach
        self._connections = connections
        self._signer = signer

    async def tools(
        self, session: GrantedSession, server_name: str, thread_id: str | None = None
    ) -> ToolsAnswer:
        """The tools of a server of the session's agent, or of a child thread's: as they were first listed."""
        child = thread_id is not None
        if thread_id is not None:
            session = session.on_thread(await self._agent_of(session.session_id, thread_id))
        url = session.server_url(server_name)
        if url is None:
            raise NotFound(f"The session's agent has no MCP server named {server_name}.")
        key = listing_key(server_name, url, child=child)
        known = await self._recorded(session.session_id, key, url)
        if known is not None:
            return ToolsAnswer(tools=known)
        try:
            tools = await self._with_connection(session, url, _listed)
        except _Failed as failed:
            _log.warning(
                "the tools of an MCP server cannot be listed",
                session_id=session.session_id,
                server=server_name,
                reason=failed.failure.message,
            )
            return ToolsAnswer(failure=failed.failure)
        return ToolsAnswer(tools=await self._record(session.session_id, key, url, tools))

    async def make(self, session: GrantedSession, call: LoggedCall) -> CallOutcome:
        """See `corral.gateway.calls.Maker`."""
        assert call.server_name is not None
        url = session.server_url(call.server_name)
        if url is None:
            return error_outcome(f"The agent no longer has an MCP server named {call.server_name}.")
        used = list[Held | None]()

        async def step(connection: Connection) -> CallOutcome:
            used.append(connection.held)
            return outcome_of(await connection.call(call.tool, call.input, call.event_id))

        try:
            outcome = await self._with_connection(session, url, step)
        except MCPError as error:
            outcome = error_outcome(f"The MCP server refused the call: {error.message}")
        except _Failed as failed:
            if failed.sent:
                return error_outcome(
                    f"The MCP server gave no result: {failed.failure.message}. The call may or may not have "
                    "taken effect."
                )
            text = f"The MCP server {call.server_name} cannot be used: {failed.failure.message}."
            return msgspec.structs.replace(error_outcome(text), failure=failed.failure)
        for held in used:
            if held is not None:
                outcome.content = held.scrubber.value(outcome.content)
        outcome.content = shortened(outcome.content)
        return outcome

    async def _with_connection(
        self, session: GrantedSession, url: str, step: Callable[[Connection], Awaitable[T]]
    ) -> T:
        """What `step` gives. A refused token is renewed once, a forgotten connection opened anew once."""
        reach = self._reach.of_environment(session.environment_id, session.environment_name)
        try:
            check_mcp_host(session.environment_config, url)
            credential = await self._credentials.for_server(session.vault_ids, url)
            held = None if credential is None else await self._tokens.held(credential)
        except NoToken as error:
            raise _Failed(Failure("mcp_authentication_failed_error", str(error))) from None
        except (NotReachable, ValueError) as error:
            raise _Failed(Failure("mcp_connection_failed_error", str(error))) from None
        signer = self._signer
        sign = None if signer is None else lambda: signer.token(session, url)
        again = True
        while True:
            try:
                connection = await self._connections.get(session.session_id, url, reach, held, sign)
                return await step(connection)
            except Unusable as error:
                await self._connections.drop(session.session_id, url)
                if not again or not (error.denied or error.expired):
                    raise _failed(error, held) from None
                again = False
                if error.denied:
                    if credential is None or held is None:
                        raise _failed(error, held) from None
                    try:
                        held = await self._tokens.renewed(credential, held)
                    except NoToken as missing:
                        raise _Failed(Failure("mcp_authentication_failed_error", str(missing))) from None

    async def _agent_of(self, session_id: str, thread_id: str) -> dict[str, Any]:
        row = await self._database.fetch_one(
            "select agent::text as agent from threads where session_id = %s and id = %s"
            " and agent is not null",
            (session_id, thread_id),
        )
        if row is None:
            raise NotFound(f"The session has no child thread {thread_id}.")
        return msgspec.json.decode(row["agent"])

    async def is_repeatable(self, session: GrantedSession, call: LoggedCall) -> bool:
        """See `corral.gateway.calls.Maker`."""
        assert call.server_name is not None
        url = session.server_url(call.server_name)
        tools = None
        if url is not None:
            key = listing_key(call.server_name, url, child=call.agent is not None)
            tools = await self._recorded(session.session_id, key, url)
        return any(tool.name == call.tool and tool.repeatable for tool in tools or ())

    async def _recorded(self, session_id: str, server_name: str, url: str) -> list[Tool] | None:
        row = await self._database.fetch_one(
            "select tools::text as tools from session_mcp_tools"
            " where session_id = %s and server_name = %s and url = %s",
            (session_id, server_name, url),
        )
        return None if row is None else msgspec.json.decode(row["tools"], type=list[Tool])

    async def _record(self, session_id: str, server_name: str, url: str, tools: list[Tool]) -> list[Tool]:
        """Keep the list unless another gateway was quicker; the list that counts."""
        await self._database.execute(
            "insert into session_mcp_tools (session_id, server_name, url, tools)"
            " values (%s, %s, %s, %s::json) on conflict (session_id, server_name) do update"
            " set url = excluded.url, tools = excluded.tools, listed_at = now()"
            " where session_mcp_tools.url <> excluded.url",
            (session_id, server_name, url, msgspec.json.encode(tools).decode()),
        )
        return await self._recorded(session_id, server_name, url) or tools


async def _listed(connection: Connection) -> list[Tool]:
    """The tools as the model may be told of them. Their words are the server's, which knows its token."""
    found = [tool for tool in map(described, await connection.tools()) if tool is not None]
    if connection.held is not None:
        found = msgspec.convert(connection.held.scrubber.value(msgspec.to_builtins(found)), list[Tool])
    return [
        msgspec.structs.replace(tool, description=tool.description[:DESCRIPTION_CHARACTERS]) for tool in found
    ]


def _failed(error: Unusable, held: Held | None) -> _Failed:
    if error.denied:
        reason = (
            f"it wants a credential ({error}), and no vault of the session has one for its URL"
            if held is None
            else f"it does not accept the credential {held.credential_id} ({error})"
        )
        return _Failed(Failure("mcp_authentication_failed_error", reason))
    # It may hold words of the server's, and those what it was sent.
    reason = str(error) if held is None else held.scrubber.text(str(error))
    return _Failed(Failure("mcp_connection_failed_error", reason[:_REASON_CHARACTERS]), sent=error.sent)
