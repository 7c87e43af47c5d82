"""What the gateway is put together from."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from corral.gateway.addresses import Reach, Resolver
from corral.gateway.calls import Calls
from corral.gateway.certificates import upstream_context
from corral.gateway.egress_log import EgressLog
from corral.gateway.identity import Signer
from corral.gateway.keyring import Keys
from corral.gateway.mcp import McpProxy
from corral.gateway.mcp_connections import Connections
from corral.gateway.mcp_outcomes import Outcomes
from corral.gateway.sessions import SessionReach
from corral.gateway.tokens import Tokens
from corral.gateway.web import web_tools
from corral.resources.credentials import Credentials
from corral.settings import Gateway
from corral.store.database import Database
from corral.vault.backends.backend import SecretBackend
from corral.vault.grants import Grants
from corral.vault.keeping import Keeper
from corral.wire.times import to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayServices:
    """Everything that the gateway's application calls."""

    database: Database
    grants: Grants
    credentials: Credentials
    tokens: Tokens
    reach: Reach
    mcp: McpProxy
    calls: Calls

    async def now(self) -> str:
        """The time by the database's clock, as it is shown."""
        row = await self.database.fetch_one("select now() as now")
        assert row is not None
        return to_wire(row["now"])


@asynccontextmanager
async def open_gateway(
    settings: Gateway,
    database: Database,
    keys: Keys,
    backend: SecretBackend | None = None,
    *,
    resolver: Resolver | None = None,
) -> AsyncGenerator[GatewayServices]:
    """The services of one gateway on `database`; on leaving, calls under way are left to another gateway.

    Names are resolved by this machine unless there is a `resolver`.

    Raises:
        KeyTrouble: secrets are sealed for a key that is not at hand.
        OSError: the bundle that `gateway.ca_bundle` names cannot be read.
    """
    await keys.check(database)
    reach = Reach(settings.internal, resolver=resolver)
    tokens = Tokens(database, keys, reach, backend)
    credentials = Credentials(database, Keeper(None))
    issuer = settings.identity_issuer
    signer = None if issuer is None else Signer(issuer, keys.present)
    bundle = None if settings.ca_bundle is None else Path(settings.ca_bundle)
    internal_tls = None if bundle is None else await asyncio.to_thread(upstream_context, bundle)
    async with EgressLog(database) as log, Outcomes(database) as outcomes:
        connections = Connections(
            connect_seconds=settings.connect_seconds,
            call_seconds=settings.call_seconds,
            idle_seconds=settings.idle_seconds,
        )
        proxy = McpProxy(
            database=database,
            credentials=credentials,
            tokens=tokens,
            reach=SessionReach(reach, settings.internal_by_environment),
            connections=connections,
            signer=signer,
        )
        calls = Calls(
            database=database,
            outcomes=outcomes,
            mcp=proxy,
            web=web_tools(settings, database, reach, log, internal_tls),
            call_seconds=settings.call_seconds,
        )
        try:
            yield GatewayServices(
                database=database,
                grants=Grants(database),
                credentials=credentials,
                tokens=tokens,
                reach=reach,
                mcp=proxy,
                calls=calls,
            )
        finally:
            await calls.close()
            await connections.close()
            await tokens.close()
