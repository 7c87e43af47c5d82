"""The composition root: from settings and a database to a server that answers, and back to nothing.

Everything is opened here in the order of its dependencies and closed in the reverse order. Streams end first,
since an HTTP server does not close while one is open.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from corral.api.app import create_app
from corral.api.services import Services
from corral.background.jobs import Background, PeriodicJob
from corral.brain.brains import Brains, BrainSettings
from corral.brain.retry import RetryPolicy
from corral.bus.postgres import PostgresBus
from corral.hands.work import WorkQueue
from corral.inference.messages import MessagesProvider
from corral.inference.provider import InferenceProvider
from corral.resources.agent_memory import AgentMemory
from corral.resources.agents import Agents
from corral.resources.blobs import Sweeper
from corral.resources.deployment_runs import DeploymentRuns
from corral.resources.deployments import Deployments
from corral.resources.environments import Environments
from corral.resources.file_services import open_file_services
from corral.resources.keys import Keys
from corral.resources.session_creation import SessionCreation
from corral.resources.vaults import Vaults
from corral.session.service import Sessions
from corral.session.writer import LogWriter
from corral.settings import Inference, Settings, Vault
from corral.store.database import Database
from corral.vault import rows as secret_rows
from corral.vault.keys import PublicKey

_CLAUDE_API: Final = "https://api.anthropic.com"
_SCHEDULES_CRON: Final = "* * * * * */10"
"""How often to look for deployments whose time has come; they may start some seconds after it."""
_GRACE_SECONDS: Final = 2
"""What requests in flight get to finish in when the server stops."""

_log = structlog.get_logger(__name__)


def provider_of(inference: Inference) -> MessagesProvider:
    """The provider that the settings name. Nothing is connected before the first request."""
    claude_api = inference.provider == "anthropic"
    return MessagesProvider(
        base_url=inference.base_url or _CLAUDE_API,
        api_key=inference.api_key.reveal() if inference.api_key is not None else "none",
        models=inference.models,
        max_tokens=inference.max_tokens,
        timeout=inference.request_timeout_seconds,
        claude_api=claude_api,
    )


def retry_policy(inference: Inference) -> RetryPolicy:
    """How model requests are repeated, from the settings."""
    return RetryPolicy(
        attempts=inference.max_retries + 1,
        base=inference.retry_backoff_seconds,
        cap=inference.retry_backoff_max_seconds,
    )


async def sealing_key(vault: Vault, database: Database) -> PublicKey | None:
    """The public key that the settings name. Secrets that another key opens are pointed out in the log."""
    key = None if vault.public_key is None else PublicKey.parse(vault.public_key)
    others = {
        found: count
        for found, count in (await secret_rows.key_ids(database)).items()
        if key is None or found != key.id
    }
    if others:
        _log.warning(
            "the vault holds secrets that another key opens; a gateway needs that key to use them",
            sealing_with=None if key is None else key.id,
            secrets_by_key=others,
        )
    return key


@asynccontextmanager
async def open_services(
    settings: Settings, database: Database, provider: InferenceProvider, *, brains: bool = True
) -> AsyncGenerator[Services]:
    """The services of one server on `database`, with brains at work unless told otherwise."""
    async with PostgresBus(database) as bus, LogWriter(database, bus) as writer:
        sessions = Sessions(database, writer, bus)
        work = WorkQueue(database, bus)
        stored = await open_file_services(database, settings.files)
        vaults = Vaults(database, await sealing_key(settings.vault, database))
        agents, environments = Agents(database), Environments(database)
        creation = SessionCreation(
            agents=agents,
            environments=environments,
            sources=stored.sources,
            session_resources=stored.session_resources,
            vaults=vaults,
            sessions=sessions,
            work=work,
        )
        services = Services(
            agents=agents,
            environments=environments,
            work=work,
            keys=Keys(database),
            sessions=sessions,
            files=stored.files,
            outputs=stored.outputs,
            sources=stored.sources,
            session_resources=stored.session_resources,
            session_creation=creation,
            deployments=Deployments(database, agents, creation),
            deployment_runs=DeploymentRuns(database, creation),
            memory=AgentMemory(database),
            vaults=vaults,
            strict_beta=settings.server.strict_beta,
            stream_padding=settings.server.stream_padding_bytes,
        )
        if not brains:
            yield services
            return
        async with (
            Sweeper(stored.blobs),
            Background(
                database,
                [PeriodicJob("corral.schedules", _SCHEDULES_CRON, services.deployment_runs.start_due)],
            ),
            Brains(
                database=database,
                log=sessions.log,
                bus=bus,
                provider=provider,
                hands=work,
                files=stored.sources,
                settings=BrainSettings(
                    concurrency=settings.brain.concurrency,
                    lease_seconds=settings.brain.lease_seconds,
                    retry=retry_policy(settings.inference),
                ),
            ),
        ):
            yield services


class HttpServer(uvicorn.Server):
    """uvicorn on a socket of ours, without its signal handlers: whoever runs us owns the signals."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                timeout_keep_alive=75,
            )
        )
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.up.set()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises OSError, for one if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: on a socket without it asyncio does not set TCP_NODELAY, and every answer on a
    # connection that is kept open then waits 40 ms for the client's acknowledgement of its headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except BaseException:
        listener.close()
        raise
    return listener


@asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncGenerator[str]:
    """Serve `app` on `listener`; yields the base URL once requests are answered."""
    host, port = listener.getsockname()[:2]
    server = HttpServer(app)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    starting = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait({task, starting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        starting.cancel()
        server.should_exit = True
        await task
        listener.close()


async def run_server(
    settings: Settings,
    database: Database,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], Awaitable[None]],
    stop: asyncio.Event,
) -> None:
    """Serve until `stop` is set; returns after everything is closed.

    `on_ready` is told the base URL as soon as requests are answered. Raises OSError if the address cannot be
    listened on.
    """
    listener = listen(host, port)
    provider = provider_of(settings.inference)
    warming = asyncio.create_task(provider.warm())
    try:
        async with open_services(settings, database, provider) as services:
            warming.add_done_callback(lambda _: services.warm.set())
            if settings.server.api_key is not None:
                await services.keys.ensure("api", settings.server.api_key.reveal(), "server.api_key")
            async with serving(create_app(services), listener) as base_url:
                await on_ready(base_url)
                await stop.wait()
                _log.info("stopping")
                services.closing.set()
    finally:
        listener.close()
        warming.cancel()
        await asyncio.gather(warming, return_exceptions=True)
        await provider.close()
