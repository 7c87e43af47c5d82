"""Deployments, their runs, and dreams."""

from typing import Final

from tests.conformance.sdk.asked import Asked
from tests.conformance.sdk.rules import Rules
from tests.conformance.sdk.rules.sessions import attachments
from tests.conformance.sdk.workshop import Workshop


async def create(asked: Asked, at: Workshop) -> None:
    """An agent, an environment, and whatever else the body names."""
    agent, known = asked.fields["agent"], (await at.agent())["id"]
    if isinstance(agent, str):
        asked.fields["agent"] = known
    else:
        agent |= {"id": known, "version": 1}
    asked.fields["environment_id"] = (await at.environment())["id"]
    await attachments(asked.fields, at)


async def existing(asked: Asked, at: Workshop) -> None:
    """A deployment to look at, to archive, to pause or to run."""
    asked.params["deployment_id"] = (await at.deployment())["id"]


async def paused(asked: Asked, at: Workshop) -> None:
    """A deployment that was paused."""
    await existing(asked, at)
    await at.api.post(f"/v1/deployments/{asked.params['deployment_id']}/pause")


async def update(asked: Asked, at: Workshop) -> None:
    """A deployment to change, and what the change names."""
    await existing(asked, at)
    if asked.body:
        if "agent" in asked.body:
            asked.body["agent"] = (await at.agent())["id"]
        if "environment_id" in asked.body:
            asked.body["environment_id"] = (await at.environment())["id"]
        await attachments(asked.body, at)


async def listed(asked: Asked, at: Workshop) -> None:
    """Two deployments of one agent. A status cannot be asked for among the archived (contract 19)."""
    agent = (await at.agent())["id"]
    for _ in range(2):
        await at.deployment(agent=agent)
    if asked.has("agent_id"):
        asked.put("agent_id", agent)
    if asked.has("status"):
        asked.drop("include_archived")


async def run(asked: Asked, at: Workshop) -> None:
    """A run to look at."""
    deployment = await at.deployment()
    asked.params["deployment_run_id"] = (await at.deployment_run(deployment["id"]))["id"]


async def listed_runs(asked: Asked, at: Workshop) -> None:
    """A deployment that ran twice."""
    deployment = await at.deployment()
    for _ in range(2):
        await at.deployment_run(deployment["id"])
    if asked.has("deployment_id"):
        asked.put("deployment_id", deployment["id"])


async def create_dream(asked: Asked, at: Workshop) -> None:
    """A store and a session to dream about (the tests name no session), and a model."""
    asked.fields["inputs"] = await at.dream_inputs()
    asked.fields["model"] = at.model


async def dream(asked: Asked, at: Workshop) -> None:
    """A dream to look at or to cancel."""
    asked.params["dream_id"] = (await at.dream())["id"]


async def ended_dream(asked: Asked, at: Workshop) -> None:
    """A dream that was cancelled: only those that have ended can be archived."""
    await dream(asked, at)
    await at.api.post(f"/v1/dreams/{asked.params['dream_id']}/cancel")


async def listed_dreams(asked: Asked, at: Workshop) -> None:
    """Two dreams."""
    for _ in range(2):
        await at.dream()


_ONE: Final = "/v1/deployments/{deployment_id}"

RULES: Final[Rules] = {
    "POST /v1/deployments": create,
    "GET /v1/deployments": listed,
    f"GET {_ONE}": existing,
    f"POST {_ONE}": update,
    f"POST {_ONE}/archive": existing,
    f"POST {_ONE}/pause": existing,
    f"POST {_ONE}/unpause": paused,
    f"POST {_ONE}/run": existing,
    "GET /v1/deployment_runs": listed_runs,
    "GET /v1/deployment_runs/{deployment_run_id}": run,
    "POST /v1/dreams": create_dream,
    "GET /v1/dreams": listed_dreams,
    "GET /v1/dreams/{dream_id}": dream,
    "POST /v1/dreams/{dream_id}/cancel": dream,
    "POST /v1/dreams/{dream_id}/archive": ended_dream,
}
