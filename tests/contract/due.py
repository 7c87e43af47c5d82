"""Deployments whose time has come, for tests: nobody waits for a clock."""

from typing import Any

from anthropic.types.beta import BetaManagedAgentsDeploymentRun

from .conftest import Api

Run = BetaManagedAgentsDeploymentRun


async def make_due(api: Api, deployment_id: str, ago: str = "15 seconds") -> str:
    """Let the deployment's next time be one that has come; the time as text."""
    row = await api.database.fetch_one(
        "update deployments set next_run_at = date_trunc('second', now()) - %s::interval where id = %s"
        " returning next_run_at",
        (ago, deployment_id),
    )
    assert row is not None
    return row["next_run_at"].isoformat()


async def runs_of(api: Api, deployment_id: str, **query: Any) -> list[Run]:
    listed = api.sdk.beta.deployment_runs.list(deployment_id=deployment_id, **query)
    return [run async for run in listed]


async def next_run_at(api: Api, deployment_id: str) -> Any:
    row = await api.database.fetch_one("select next_run_at from deployments where id = %s", (deployment_id,))
    assert row is not None
    return row["next_run_at"]
