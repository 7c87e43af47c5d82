"""What the API is put together from; the composition root fills it in."""

import asyncio
from dataclasses import dataclass, field

from corral.hands.work import WorkQueue
from corral.resources.agent_memory import AgentMemory
from corral.resources.agents import Agents
from corral.resources.deployment_runs import DeploymentRuns
from corral.resources.deployments import Deployments
from corral.resources.environments import Environments
from corral.resources.file_sources import FileSources
from corral.resources.files import Files
from corral.resources.keys import Keys
from corral.resources.outputs import Outputs
from corral.resources.session_creation import SessionCreation
from corral.resources.session_resources import SessionResources
from corral.resources.vaults import Vaults
from corral.session.service import Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that a route may call.

    ``closing`` is set when the server begins to stop: open streams and long polls then end at once.
    ``warm`` is set once models can be called without further preparation.
    ``stream_padding`` is how many bytes of comment follow a stream's opening and each of its pings.
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
    deployments: Deployments
    deployment_runs: DeploymentRuns
    memory: AgentMemory
    vaults: Vaults
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    warm: asyncio.Event = field(default_factory=asyncio.Event)
    strict_beta: bool = False
    stream_padding: int = 0
