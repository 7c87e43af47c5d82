"""What the API is put together from; the composition root fills it in."""

import asyncio
from dataclasses import dataclass, field

from corral.api.admission import Admission
from corral.api.rate_limits import RateLimits
from corral.brain.brains import Brains
from corral.extensions.services import Extensions
from corral.gateway.client import GatewayClient
from corral.hands.work import WorkQueue
from corral.inference.model_list import ModelList
from corral.resources.agent_memory import AgentMemory
from corral.resources.agents import Agents
from corral.resources.audit import AuditTrail
from corral.resources.deployment_runs import DeploymentRuns
from corral.resources.deployments import Deployments
from corral.resources.dreams import Dreams
from corral.resources.environments import Environments
from corral.resources.file_sources import FileSources
from corral.resources.files import Files
from corral.resources.keys import Keys
from corral.resources.outputs import Outputs
from corral.resources.sandbox_plans import SandboxPlans
from corral.resources.session_creation import SessionCreation
from corral.resources.session_resources import SessionResources
from corral.resources.skill_references import SkillReach
from corral.resources.skills import Skills
from corral.resources.user_profiles import UserProfiles
from corral.resources.vaults import Vaults
from corral.resources.webhook_services import WebhookServices
from corral.session.service import Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that a route may call.

    ``draining`` is set as soon as the server is told to stop: it says that it is not ready, and keeps no
    connection for a further request.
    ``closing`` is set when it stops answering: open streams and long polls then end at once.
    ``brains`` are those at work in this process, if any.
    ``warm`` is set once models can be called without further preparation.
    ``stream_padding`` is how many bytes of comment follow a stream's opening and each of its pings.
    ``body_seconds`` is how long each piece of a request's body may take to come.
    ``strict_beta`` makes requests without the documented ``anthropic-beta`` header fail as the hosted service
    lets them fail; without it any value, or none, is accepted.
    """

    agents: Agents
    environments: Environments
    work: WorkQueue
    keys: Keys
    sessions: Sessions
    files: Files
    outputs: Outputs
    sources: FileSources
    session_resources: SessionResources
    session_creation: SessionCreation
    sandbox_plans: SandboxPlans
    deployments: Deployments
    deployment_runs: DeploymentRuns
    memory: AgentMemory
    vaults: Vaults
    webhooks: WebhookServices
    audit: AuditTrail
    extensions: Extensions
    admission: Admission
    limits: RateLimits = field(default_factory=RateLimits)
    user_profiles: UserProfiles
    dreams: Dreams
    skills: Skills
    skill_reach: SkillReach
    models: ModelList = field(default_factory=ModelList)
    gateway: GatewayClient | None = None
    brains: Brains | None = None
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    warm: asyncio.Event = field(default_factory=asyncio.Event)
    strict_beta: bool = False
    stream_padding: int = 0
    body_seconds: float = 60.0
