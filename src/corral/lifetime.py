"""The life of one server: what it does by its role, and how it ends without anybody losing anything.

Told to stop, it first says that it is not ready and lets its sessions go, so that other servers go on with
them; it still answers. When no model request is under way any more, or their time is up, streams are ended,
for their readers to open elsewhere, and requests in flight are finished.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from corral.api.app import create_app, create_probes
from corral.api.connection import bounded
from corral.api.services import Services
from corral.brain.brains import Brains
from corral.inference.messages import MessagesProvider
from corral.server import listen, open_services, provider_of, serving
from corral.settings import Load, Settings
from corral.store.database import Database
from corral.telemetry.responsiveness import Responsiveness

_log = structlog.get_logger(__name__)


async def run_server(
    settings: Settings,
    database: Database,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], Awaitable[None]],
    stop: asyncio.Event,
    hurry: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set; returns after everything is closed.

    `on_ready` is told the base URL as soon as requests are answered. `hurry` cuts short what is waited for in
    between. Raises OSError if the address cannot be listened on.
    """
    role = settings.server.role
    listener = listen(host, port)
    provider = provider_of(settings.inference) if settings.inference.is_configured or role != "api" else None
    warming = asyncio.create_task(_warm(provider if role != "api" else None))
    try:
        async with (
            Responsiveness(),
            open_services(settings, database, provider, brains=role != "api") as services,
        ):
            warming.add_done_callback(lambda _: services.warm.set())
            if settings.server.api_key is not None and role != "brain":
                await services.keys.ensure("api", settings.server.api_key.reveal(), "server.api_key")
            app = create_probes(services) if role == "brain" else create_app(services)
            async with serving(app, listener, bounded(settings.load.stalled_seconds)) as base_url:
                await on_ready(base_url)
                await stop.wait()
                await drain(services, settings.load, hurry or asyncio.Event())
                services.closing.set()
    finally:
        listener.close()
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        if provider is not None:
            await provider.close()


async def drain(services: Services, load: Load, hurry: asyncio.Event) -> None:
    """Let everything go that others can take over, while requests are still answered."""
    services.draining.set()
    _log.info("stopping", wait_seconds=load.drain_seconds)
    if hurry.is_set():
        return
    letting_go = asyncio.create_task(_let_go(services.brains, load))
    hurried = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait({letting_go, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if letting_go.done():
            letting_go.result()
    finally:
        letting_go.cancel()
        hurried.cancel()
        await asyncio.gather(letting_go, hurried, return_exceptions=True)


async def _let_go(brains: Brains | None, load: Load) -> None:
    async with asyncio.TaskGroup() as together:
        together.create_task(asyncio.sleep(load.drain_delay_seconds))
        if brains is not None:
            together.create_task(brains.hand_over(load.drain_seconds))


async def _warm(provider: MessagesProvider | None) -> None:
    """Prepare for model requests, where there will be any."""
    if provider is not None:
        await provider.warm()
