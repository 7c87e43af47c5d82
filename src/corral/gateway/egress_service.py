"""The egress listener of a gateway, put together from the settings."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from corral.gateway.addresses import Reach, lookups
from corral.gateway.certificates import open_authority, upstream_context
from corral.gateway.egress import EgressLimits, EgressListener
from corral.gateway.egress_log import EgressLog
from corral.gateway.egress_rows import EgressRows
from corral.gateway.keyring import Keys
from corral.gateway.policy import Walls
from corral.settings import Gateway
from corral.store.database import Database
from corral.vault.backends.backend import SecretBackend


@asynccontextmanager
async def serving_egress(
    settings: Gateway,
    database: Database,
    keys: Keys,
    listener: socket.socket,
    backend: SecretBackend | None = None,
) -> AsyncGenerator[EgressListener]:
    """Serve sandboxes on a listening socket.

    Raises:
        OSError: the bundle that `gateway.ca_bundle` names cannot be read.
    """
    bundle = None if settings.ca_bundle is None else Path(settings.ca_bundle)
    public, internal = await asyncio.to_thread(lambda: (upstream_context(), upstream_context(bundle)))
    authority = await open_authority(database, keys.ring, keys.present.public)
    async with AsyncExitStack() as stack:
        resolver = stack.enter_context(lookups())
        log = await stack.enter_async_context(EgressLog(database))
        egress = EgressListener(
            rows=EgressRows(database, keys, backend),
            log=log,
            authority=authority,
            reach=Reach(settings.internal, resolver=resolver),
            internal_by_environment=settings.internal_by_environment,
            walls=Walls(frozenset(settings.egress_ports), tuple(settings.package_hosts)),
            public=public,
            internal=internal,
            limits=EgressLimits(
                connections=settings.egress_connections,
                of_session=settings.egress_connections_of_session,
                body_bytes=settings.egress_body_bytes,
            ),
        )
        await stack.enter_async_context(egress)
        await egress.listen(listener)
        yield egress
