"""The composition root: from settings and a database to services, and back to nothing.

Everything is opened here in the order of its dependencies and closed in the reverse order. How a server lives
from its start to its end is told in `corral.lifetime`.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from corral.api.admission import Admission, Backlog, Places
from corral.api.body_room import BodyRoom
from corral.api.connection import BoundedProtocol
from corral.api.rate_limits import RateLimits
from corral.api.services import Services
from corral.background.jobs import Background, PeriodicJob
from corral.brain.brains import Brains, BrainSettings
from corral.brain.claims import EnvironmentBounds
from corral.brain.clearance import JudgeOffer, PolicyOffer
from corral.brain.context_rules import ContextSettings
from corral.brain.grading import GraderSettings
from corral.brain.retry import RetryPolicy
from corral.brain.web_tools import WebOffer
from corral.bus.hub import DREAMS_TOPIC, WEBHOOKS_TOPIC
from corral.bus.postgres import PostgresBus
from corral.extensions.services import open_extensions
from corral.gateway.client import gateway_client
from corral.gateway.secret_backends import open_backend
from corral.hands.work import WorkQueue
from corral.inference.messages import MessagesProvider
from corral.inference.model_list import ModelList, ModelSource
from corral.inference.prices import PriceTable, price_table
from corral.inference.provider import InferenceProvider
from corral.policy.loading import load_policy
from corral.resources.agent_memory import AgentMemory
from corral.resources.agents import Agents
from corral.resources.audit import AuditTrail
from corral.resources.deployment_runs import DeploymentRuns
from corral.resources.deployments import Deployments
from corral.resources.dream_pipeline import DreamPipeline
from corral.resources.dream_start import DreamLimits
from corral.resources.dreams import Dreams
from corral.resources.environments import Environments
from corral.resources.file_services import open_file_services
from corral.resources.keys import Keys
from corral.resources.repositories import AttachedRepositories
from corral.resources.sandbox_plans import SandboxPlans
from corral.resources.session_creation import SessionCreation
from corral.resources.skill_references import SkillReach
from corral.resources.skills import Skills
from corral.resources.user_profiles import UserProfiles
from corral.resources.vaults import Vaults
from corral.resources.webhook_services import open_webhooks
from corral.session.service import Sessions
from corral.session.writer import LogWriter
from corral.settings import Dreams as DreamSettings
from corral.settings import Gateway, Inference, Load, Settings, Vault
from corral.settings import Policy as PolicySettings
from corral.store.database import Database
from corral.vault import rows as secret_rows
from corral.vault.backends.backend import SecretBackend
from corral.vault.keeping import Keeper, remove_dropped
from corral.vault.keys import PublicKey
from corral.wire.model_table import PROVIDERS, CapabilityTable

_CLAUDE_API: Final = "https://api.anthropic.com"
_JUDGE_MODEL: Final = "claude-haiku-4-5"
"""Judges calls on the Claude API, unless the settings name another model."""
_SCHEDULES_CRON: Final = "* * * * * */10"
"""How often to look for deployments whose time has come; they may start some seconds after it."""
_MINUTELY_CRON: Final = "* * * * *"
_PRUNING_CRON: Final = "17 3 * * *"
_WEBHOOKS_CRON: Final = "* * * * * */5"
"""How often to look for webhook events to send again; new ones announce themselves."""
_HOURLY_CRON: Final = "41 * * * *"
_DREAMS_CRON: Final = "* * * * * */2"
"""How often to look after dreams whose model took its time."""
_GRACE_SECONDS: Final = 2
"""What requests in flight get to finish in once the server answers no more."""

_log = structlog.get_logger(__name__)


def provider_of(inference: Inference) -> MessagesProvider:
    """The provider that the settings name. Nothing is connected before the first request."""
    return MessagesProvider(
        base_url=inference.base_url or _CLAUDE_API,
        api_key=inference.api_key.reveal() if inference.api_key is not None else "none",
        models=inference.models,
        max_tokens=inference.max_tokens,
        timeout=inference.request_timeout_seconds,
        offers=PROVIDERS[inference.provider],
        capabilities=CapabilityTable(inference.capabilities),
        context_editing=inference.context_editing,
    )


def prices_of(inference: Inference) -> PriceTable:
    """The list prices that the settings come to. Blocking: it may read a file."""
    return price_table(
        inference.prices,
        inference.prices_file,
        session_hour=inference.session_hour_price,
        thousand_web_searches=inference.web_searches_price,
    )


def retry_policy(inference: Inference) -> RetryPolicy:
    """How model requests are repeated, from the settings."""
    return RetryPolicy(
        attempts=inference.max_retries + 1,
        base=inference.retry_backoff_seconds,
        cap=inference.retry_backoff_max_seconds,
    )


def judge_model(policy: PolicySettings, inference: Inference) -> str | None:
    """The model that judges calls, from the settings; None for the agent's own."""
    return policy.judge_model or (_JUDGE_MODEL if inference.provider == "anthropic" else None)


def policy_of(settings: Settings) -> PolicyOffer:
    """What calls are decided by, from the settings. Blocking: it may read a file."""
    policy = settings.policy
    gate = None if policy.file is None else load_policy(Path(policy.file))
    if gate is not None:
        _log.info("tool calls are held against a policy", policy=gate.digest, rules=len(gate.rules))
    if not policy.judge:
        return PolicyOffer(gate)
    model = judge_model(policy, settings.inference)
    return PolicyOffer(gate, JudgeOffer(model, policy.judge_timeout_seconds))


def brain_settings(settings: Settings, prices: PriceTable, policy: PolicyOffer) -> BrainSettings:
    """How brains work, from the settings."""
    brain = settings.brain
    return BrainSettings(
        concurrency=brain.concurrency,
        bounds=EnvironmentBounds(brain.sessions_per_environment, brain.sessions_by_environment),
        lease_seconds=brain.lease_seconds,
        retry=retry_policy(settings.inference),
        prices=prices,
        web=web_offer(settings.gateway),
        grader=GraderSettings(settings.outcomes.grader_model, settings.outcomes.heartbeat_seconds),
        context=ContextSettings(
            capabilities=CapabilityTable(settings.inference.capabilities),
            compact_at=brain.compact_at,
            images_kept=brain.images_kept,
            max_tokens=settings.inference.max_tokens,
        ),
        policy=policy,
    )


def web_offer(gateway: Gateway) -> WebOffer:
    """The web tools that agents may have, from the settings. What the gateway runs needs one."""
    offer = WebOffer(fetch=gateway.web_fetch, search=gateway.search)
    if gateway.url is None and (offer.fetch or offer.search == "endpoint"):
        _log.warning("web tools are off: they need a gateway (gateway.url)", search=offer.search)
        return WebOffer(search="provider" if offer.search == "provider" else "none")
    return offer


def admission_of(load: Load, database: Database, writer: LogWriter) -> Admission:
    """The bounds on what a server takes on, from the settings."""
    return Admission(
        Places("requests", load.max_requests, load.max_requests_per_key),
        Places("streams", load.max_streams, load.max_streams_per_key),
        Backlog(
            database,
            lambda: writer.queued,
            most_queued=load.max_queued_commits,
            most_sessions=load.max_waiting_sessions,
        ),
        BodyRoom(load.max_body_bytes),
    )


def dream_limits(dreams: DreamSettings) -> DreamLimits:
    """The bounds of dreams, from the settings."""
    return DreamLimits(
        concurrency=dreams.concurrency,
        timeout=dreams.timeout_seconds,
        store_bytes=dreams.max_store_bytes,
        reading=dreams.max_reading_characters,
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
    settings: Settings, database: Database, provider: InferenceProvider | None, *, brains: bool = True
) -> AsyncGenerator[Services]:
    """The services of one server on `database`, with brains at work unless told otherwise.

    Brains need a `provider`; without them it serves the list of models alone.
    """
    async with (
        PostgresBus(database) as bus,
        LogWriter(database, bus) as writer,
        open_webhooks(database, settings.webhooks) as webhooks,
        gateway_client(settings.gateway, database) as gateway,
        open_backend(settings.secret_manager) as backend,
        AsyncExitStack() as stack,
    ):
        prices = await asyncio.to_thread(prices_of, settings.inference)
        sessions = Sessions(database, writer, bus, session_hour=prices.session_hour)
        work = WorkQueue(database, bus)
        key = await sealing_key(settings.vault, database)
        repositories = AttachedRepositories(key, settings.gateway.git_hosts)
        stored = await open_file_services(database, settings.files, repositories)
        vaults = Vaults(database, Keeper(key, backend))
        agents, environments = Agents(database), Environments(database)
        creation = SessionCreation(
            agents=agents,
            environments=environments,
            sources=stored.sources,
            session_resources=stored.session_resources,
            vaults=vaults,
            sessions=sessions,
            work=work,
            prices=prices,
        )
        extensions = await stack.enter_async_context(
            open_extensions(
                settings.chain,
                database,
                bus,
                writer.written,
                blobs=stored.blobs,
                environments=environments,
                repositories=repositories,
                vaults=vaults,
                work=work,
                prices=prices,
                web=web_offer(settings.gateway),
            )
        )
        at_work = None
        if brains:
            assert provider is not None
            policy = await asyncio.to_thread(policy_of, settings)
            at_work = Brains(
                database=database,
                log=sessions.log,
                bus=bus,
                provider=provider,
                hands=work,
                files=stored.sources,
                gateway=gateway,
                settings=brain_settings(settings, prices, policy),
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
            sandbox_plans=SandboxPlans(
                database, sessions, settings.gateway.egress_address, settings.gateway.package_hosts
            ),
            deployments=Deployments(database, agents, creation),
            deployment_runs=DeploymentRuns(database, creation),
            models=ModelList(
                provider if isinstance(provider, ModelSource) else None,
                prices=prices,
                capabilities=CapabilityTable(settings.inference.capabilities),
                aliases=settings.inference.models,
                timeout=settings.inference.models_timeout_seconds,
            ),
            memory=AgentMemory(database),
            vaults=vaults,
            webhooks=webhooks,
            gateway=gateway,
            user_profiles=UserProfiles(database),
            dreams=Dreams(database, bus),
            skills=Skills(database, stored.blobs),
            skill_reach=SkillReach(database),
            audit=AuditTrail(database, settings.server.audit_days),
            extensions=extensions,
            brains=at_work,
            admission=admission_of(settings.load, database, writer),
            limits=RateLimits(settings.server.reads_per_minute, settings.server.writes_per_minute),
            strict_beta=settings.server.strict_beta,
            stream_padding=settings.server.stream_padding_bytes,
        )
        if at_work is None:
            yield services
            return
        await webhooks.declare(settings.webhooks)
        dreaming = DreamPipeline(database, sessions, bus, dream_limits(settings.dreams))
        async with (
            Background(
                database,
                [
                    PeriodicJob("corral.schedules", _SCHEDULES_CRON, services.deployment_runs.start_due),
                    PeriodicJob("corral.blobs", _MINUTELY_CRON, stored.blobs.tidy),
                    PeriodicJob("corral.audit_pruning", _PRUNING_CRON, services.audit.prune),
                    PeriodicJob(
                        "corral.webhooks", _WEBHOOKS_CRON, webhooks.deliveries.deliver_due, WEBHOOKS_TOPIC
                    ),
                    PeriodicJob("corral.dreams", _DREAMS_CRON, dreaming.advance, DREAMS_TOPIC),
                    PeriodicJob("corral.webhook_pruning", _HOURLY_CRON, webhooks.deliveries.prune),
                    *_removals(database, backend),
                ],
                bus,
            ),
            at_work,
        ):
            yield services


def _removals(database: Database, backend: SecretBackend | None) -> list[PeriodicJob]:
    """The job that removes from a secret manager what nothing refers to any more."""
    if backend is None:
        return []
    return [PeriodicJob("corral.secret_removals", _MINUTELY_CRON, lambda: remove_dropped(database, backend))]


class HttpServer(uvicorn.Server):
    """uvicorn on a socket of ours, without its signal handlers: whoever runs us owns the signals."""

    def __init__(self, app: ASGIApp, protocol: type[BoundedProtocol]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
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
async def serving(
    app: ASGIApp, listener: socket.socket, protocol: type[BoundedProtocol] = BoundedProtocol
) -> AsyncGenerator[str]:
    """Serve `app` on `listener`; yields the base URL once requests are answered."""
    host, port = listener.getsockname()[:2]
    server = HttpServer(app, protocol)
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
