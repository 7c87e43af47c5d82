"""A thread's dealings with the gateway: MCP servers and web tools. The brain never has a credential.

The tools of a server are listed once in a session and come from the database from then on, so that every
model request has the same ones. Calls run side by side, each under the id of its event: asked for again after
a crash, the gateway gives the outcome that it has kept. (A search by the model provider is the one call that
does not go there; see `corral.brain.web_tools`.)
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import psycopg
import structlog
from psycopg_pool import PoolTimeout

from corral.brain.claims import Claim
from corral.brain.mcp_tools import McpTool, McpTools, offered, server_names
from corral.brain.permission import Agent
from corral.session.calls import Call
from corral.store.database import Database
from corral.wire.gateway import (
    CallOutcome,
    Failure,
    GatewayUnavailable,
    NotGranted,
    Tool,
    ToolsAnswer,
    listing_key,
)
from corral.wire.secret import Secret

_GRANT_SECONDS: Final = 1800.0
"""A grant older than this is not used again; it holds for longer."""
_ATTEMPTS: Final = 8
_FIRST_BACKOFF: Final = 0.25
_LONGEST_BACKOFF: Final = 8.0
_NO_GATEWAY: Final = (
    "this server has no gateway (gateway.url), and other machines are reached through one alone"
)
_UNKNOWN: Final = (
    "The outcome of this call is unknown: the gateway does not answer. It may or may not have taken effect; "
    "check before you repeat it."
)

_log = structlog.get_logger(__name__)


class McpGateway(Protocol):
    """What the brain asks of the gateway."""

    async def grant(self, session_id: str, epoch: int) -> Secret:
        """A grant for the session under this epoch."""
        ...

    async def revoke(self, grant: Secret) -> None:
        """End a grant."""
        ...

    async def tools(self, grant: Secret, server_name: str, thread_id: str | None) -> ToolsAnswer:
        """The tools of a server, of a child's agent if its thread is named. Raises `GatewayUnavailable`."""
        ...

    async def call(self, grant: Secret, event_id: str) -> CallOutcome:
        """The outcome of a call that is in the log. Raises `GatewayUnavailable`."""
        ...

    async def cancel(self, grant: Secret, event_id: str) -> None:
        """Stop a call. Raises `GatewayUnavailable`."""
        ...


MadeHere: TypeAlias = Callable[[Call], Coroutine[Any, Any, CallOutcome] | None]
"""Makes a call that needs no gateway; None for any other call."""


class McpShelf:
    """The MCP tools of one thread, and its calls under way. `close` ends it.

    `thread_id` is that of a child, whose agent may know other servers by the same names as the session's.
    """

    def __init__(
        self,
        claim: Claim,
        agent: Agent,
        database: Database,
        gateway: McpGateway | None,
        *,
        thread_id: str | None = None,
        made_here: MadeHere | None = None,
    ) -> None:
        self._claim = claim
        self._agent = agent
        self._database = database
        self._gateway = gateway
        self._made_here = made_here
        self._thread_id = thread_id
        self._servers = server_names(agent)
        self._listed: dict[str, Sequence[Tool]] = {}
        self._tools: dict[str, McpTool] = {}
        self._grant: Secret | None = None
        self._granted_at = 0.0
        self._calls: dict[str, asyncio.Task[CallOutcome]] = {}
        self._own: set[str] = set()
        """The calls that the gateway knows nothing of."""

    @property
    def tools(self) -> McpTools:
        """The tools by the model's names; the same mapping throughout, which grows as servers are listed."""
        return self._tools

    async def prepare(self) -> None:
        """Read what was listed before in this session."""
        if not self._servers:
            return
        rows = await self._database.fetch(
            "select server_name, url, tools::text as tools from session_mcp_tools where session_id = %s",
            (self._claim.session_id,),
        )
        child = self._thread_id is not None
        listed = {(row["server_name"], row["url"]): row["tools"] for row in rows}
        for server in self._agent["mcp_servers"]:
            key = (listing_key(server["name"], server["url"], child=child), server["url"])
            if (tools := listed.get(key)) is not None:
                self._listed[server["name"]] = msgspec.json.decode(tools, type=list[Tool])
        self._offer()

    def definitions(self) -> list[dict[str, Any]]:
        """The tools' definitions for the model."""
        return [tool.definition for tool in self._tools.values()]

    def missing(self, failed: Iterable[str]) -> list[str]:
        """The servers that are not listed yet, but for those that have failed in this run."""
        left = set(failed)
        return [name for name in self._servers if name not in self._listed and name not in left]

    async def connect(self, servers: Sequence[str]) -> dict[str, Failure]:
        """Have servers listed, side by side; what failed, by server."""
        answers = await asyncio.gather(*map(self._list, servers))
        failures = dict[str, Failure]()
        for name, answer in zip(servers, answers, strict=True):
            if answer.failure is not None:
                failures[name] = answer.failure
            else:
                self._listed[name] = answer.tools
        self._offer()
        return failures

    def start(self, calls: Iterable[Call]) -> None:
        """Begin those of the calls that are not under way."""
        for call in calls:
            if call.id not in self._calls:
                making = self._made_here(call) if self._made_here is not None else None
                if making is not None:
                    self._own.add(call.id)
                self._calls[call.id] = asyncio.create_task(
                    making or self._called(call.id), name=f"call {call.id}"
                )

    @property
    def under_way(self) -> list[asyncio.Task[CallOutcome]]:
        """The calls that have begun, done or not."""
        return list(self._calls.values())

    def take_done(self) -> dict[str, CallOutcome]:
        """The outcomes that have come since, by event."""
        done = {event_id: task for event_id, task in self._calls.items() if task.done()}
        for event_id in done:
            del self._calls[event_id]
        return {event_id: task.result() for event_id, task in done.items()}

    async def cancel(self, event_ids: Iterable[str]) -> None:
        """Stop calls that are under way, here and at the gateway."""
        for event_id in event_ids:
            task = self._calls.pop(event_id, None)
            if task is None:
                continue
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if self._gateway is None or event_id in self._own:
                continue
            try:
                await self._gateway.cancel(await self._grant_of(self._gateway), event_id)
            except GatewayUnavailable as error:
                _log.warning("the gateway could not be told to stop a call", reason=str(error))

    async def close(self) -> None:
        """Let go of calls under way, which the gateway goes on with, and give the grant back."""
        tasks = list(self._calls.values())
        self._calls.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._grant is not None and self._gateway is not None:
            grant, self._grant = self._grant, None
            try:
                await self._gateway.revoke(grant)
            except (psycopg.Error, PoolTimeout) as error:
                _log.warning("a grant could not be given back; it ends with the epoch", error=str(error))

    def _offer(self) -> None:
        self._tools.clear()
        self._tools.update(offered(self._agent, self._listed))

    async def _list(self, server_name: str) -> ToolsAnswer:
        if self._gateway is None:
            return ToolsAnswer(failure=Failure("mcp_connection_failed_error", _NO_GATEWAY))
        try:
            grant = await self._grant_of(self._gateway)
            return await self._gateway.tools(grant, server_name, self._thread_id)
        except GatewayUnavailable as error:
            return ToolsAnswer(failure=Failure("mcp_connection_failed_error", str(error)))

    async def _called(self, event_id: str) -> CallOutcome:
        """The outcome of a call. Asking again is safe: a call is made once, however often it is asked for."""
        gateway = self._gateway
        if gateway is None:
            return _error(f"The tool cannot be used: {_NO_GATEWAY}.")
        backoff = _FIRST_BACKOFF
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(backoff)
                backoff = min(_LONGEST_BACKOFF, backoff * 2)
            try:
                return await gateway.call(await self._grant_of(gateway), event_id)
            except NotGranted:
                self._grant = None
            except GatewayUnavailable as error:
                _log.warning("a call through the gateway is asked for again", reason=str(error))
        return _error(_UNKNOWN)

    async def _grant_of(self, gateway: McpGateway) -> Secret:
        now = asyncio.get_running_loop().time()
        if self._grant is None or now - self._granted_at > _GRANT_SECONDS:
            self._grant = await gateway.grant(self._claim.session_id, self._claim.epoch)
            self._granted_at = now
        return self._grant


def _error(text: str) -> CallOutcome:
    return CallOutcome(content=[{"type": "text", "text": text}], is_error=True)
