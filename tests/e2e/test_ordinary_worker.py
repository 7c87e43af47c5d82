"""A worker that is no root, and reaches its gateway as one on another machine does: under TLS."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corral.settings import Gateway
from corral.testing import ScriptedModel
from tests.e2e.test_repositories import TOKEN, repository
from tests.e2e.test_sandbox_network import agent_session, ran
from tests.e2e.worker_at_work import pool, python_for_all, worker_process
from tests.egress_world import EgressWorld, egress_world
from tests.git_server import GitServer, git_server
from tests.upstream_servers import TestAuthority, upstream

HOST = "api.internal.example"
GIT = "git.internal.example"
# Leads to this machine, and no worker knows that.
ELSEWHERE = "127.1"
ORDINARY = 12345


def ordinary_user() -> int | None:
    """A user other than root that can run a worker; None if that is who runs the tests."""
    if os.geteuid() != 0:
        return None
    if not Path(python_for_all()[0]).exists():
        pytest.skip("this machine has no Python of this version for every user")
    return ORDINARY


@pytest_asyncio.fixture
async def house(
    database_url: str, model: ScriptedModel, open_folder: Path
) -> AsyncGenerator[tuple[EgressWorld, GitServer]]:
    """A gateway, a git server, and a worker process of an ordinary user."""
    user = ordinary_user()
    outside = TestAuthority(open_folder)
    async with git_server(outside.context(GIT), GIT) as git:
        gateway = Gateway(git_hosts=[git.authority])
        async with egress_world(
            database_url, model, open_folder, gateway=gateway, outside=outside, told_host=ELSEWHERE
        ) as world:
            workspaces = open_folder / "workspaces"
            workspaces.mkdir()
            if user is not None:
                os.chown(workspaces, user, user)
            settings = await pool(world.corral, open_folder, sandbox="bubblewrap")
            async with worker_process(settings, user):
                yield world, git


async def test_requests_secrets_and_repositories_work_without_root_and_over_a_network(
    house: tuple[EgressWorld, GitServer],
) -> None:
    """What a sandbox gets is the same; what it must not have it has no more than under root."""
    world, git = house
    variable = await world.variable("v4lue", [HOST])
    networking: dict[str, Any] = {"type": "limited", "allowed_hosts": [HOST]}
    async with upstream(world.outside.context(HOST)) as server:
        session = await agent_session(
            world,
            networking,
            vault_ids=[variable.vault_id],
            resources=[repository(git.add("acme/api", TOKEN))],
        )
        url = f"https://{HOST}:{server.port}/x"
        output, failed = await ran(
            session,
            f'curl -sS --fail -H "X-Key: $API_TOKEN" {url} >/dev/null && cat api/README.md && '
            "git -C api fetch && curl -sS http://other.internal.example/; id -u",
        )
        assert not failed, output
        assert server.asked[-1].header("x-key") == "v4lue"
        assert output.startswith("hello\n")
        assert "may not be reached from this sandbox" in output
        output, _ = await ran(
            session,
            "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; ls -l /run/corral; "
            "grep -rIl 'PRIVATE KEY' /run /etc /tmp /workspace 2>/dev/null; ls /proc | grep -c '^[0-9]'",
        )
        assert not any(secret in output for secret in ("corral_wt_", "v4lue", TOKEN, "PRIVATE KEY"))
        thief = await agent_session(world, networking)
        output, _ = await ran(
            thief, "ls / /mnt /workspace /run/corral; ls /workspace/../*/*.sock 2>&1; cat /proc/1/cwd/* 2>&1"
        )
        assert "README.md" not in output
        assert session.id not in output
