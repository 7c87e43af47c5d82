"""What a session's log says of credentials and repositories that cannot be used, read with the SDK."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from anthropic.types.beta import sessions as types

from corral.settings import Gateway
from corral.testing import ScriptedModel
from tests.e2e.test_repositories import TOKEN, Forge, a_forge, errors, repository
from tests.e2e.test_sandbox_network import agent_session, ran, worker
from tests.e2e.worker_at_work import TOOLSET
from tests.egress_world import EgressWorld, egress_world

HOST = "api.internal.example"
PACKAGES = "packages.internal.example"


@pytest_asyncio.fixture
async def world(database_url: str, model: ScriptedModel, open_folder: Path) -> AsyncGenerator[EgressWorld]:
    """A server and a worker; its operator has named a package index."""
    gateway = Gateway(package_hosts=[PACKAGES])
    async with egress_world(database_url, model, open_folder, gateway=gateway) as world:
        async with worker(world, open_folder):
            yield world


def limited(*hosts: str, **fields: bool) -> dict[str, Any]:
    """Networking that opens these hosts."""
    return {"type": "limited", "allowed_hosts": list(hosts), **fields}


async def test_a_credential_for_hosts_that_the_environment_bars_is_told_once(world: EgressWorld) -> None:
    """Section 15.2: told with both ids when the sandbox starts; the session goes on."""
    variable = await world.variable("v4lue", [HOST, "*.other.example"])
    session = await agent_session(world, limited(HOST), vault_ids=[variable.vault_id])
    for _ in range(2):
        output, failed = await ran(session, "echo on")
        assert (output.strip(), failed) == ("on", False)
    [error] = await errors(session)
    assert isinstance(error, types.BetaManagedAgentsCredentialHostUnreachableError)
    assert error.type == "credential_host_unreachable_error"
    assert (error.credential_id, error.vault_id) == (variable.id, variable.vault_id)
    assert "*.other.example" in error.message
    assert HOST not in error.message
    assert error.retry_status.type == "retrying"
    assert (await session.retrieve()).status == "idle"


@pytest.mark.parametrize(
    "networking",
    [
        {"type": "unrestricted"},
        limited(HOST, PACKAGES),
        limited("*.internal.example"),
        limited(HOST, allow_package_managers=True),
    ],
)
async def test_a_credential_whose_hosts_are_all_open_is_no_error(world: EgressWorld, networking: Any) -> None:
    """Also where a host is open as one that packages come from."""
    variable = await world.variable("v4lue", [HOST, PACKAGES])
    session = await agent_session(world, networking, vault_ids=[variable.vault_id])
    await ran(session, "true")
    assert await errors(session) == []


async def test_a_host_that_is_open_for_the_agents_mcp_server_is_open_for_a_credential(
    world: EgressWorld,
) -> None:
    """`allow_mcp_servers` opens the host to the sandbox too, so the secret can be sent there."""
    variable = await world.variable("v4lue", [HOST])
    agent = await world.corral.agent(
        TOOLSET,
        {"type": "mcp_toolset", "mcp_server_name": "one"},
        mcp_servers=[{"type": "url", "name": "one", "url": f"https://{HOST}/mcp"}],
    )
    networking = limited(allow_mcp_servers=True)
    session = await world.session(networking, agent=agent, vault_ids=[variable.vault_id])
    await ran(session, "true")
    assert "credential_host_unreachable_error" not in {error.type for error in await errors(session)}
    other = await agent_session(world, networking, vault_ids=[variable.vault_id])
    await ran(other, "true")
    assert [error.type for error in await errors(other)] == ["credential_host_unreachable_error"]


@pytest_asyncio.fixture
async def forge(database_url: str, model: ScriptedModel, open_folder: Path) -> AsyncGenerator[Forge]:
    """A git server, a gateway that may reach it, and a worker."""
    async with a_forge(database_url, model, open_folder) as forge:
        yield forge


async def test_what_cannot_be_cloned_at_all_is_a_clone_error(forge: Forge) -> None:
    """The last of the five errors of section 9: the server fails, and git says so."""
    url = forge.git.add("acme/api", TOKEN)
    forge.git.broken.add("acme/api")
    session = await forge.session(repository(url))
    output, failed = await ran(session, "echo on")
    assert (output.strip(), failed) == ("on", False)
    [error] = await errors(session)
    assert isinstance(error, types.BetaManagedAgentsRepositoryCloneError)
    assert (error.repository_url, error.retry_status.type) == (url, "retrying")
    assert "500" in error.message
    assert TOKEN not in error.message
