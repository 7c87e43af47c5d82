"""Repositories in sandboxes, from a real git server: cloned, fetched and pushed without a token inside."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corral.settings import Gateway
from corral.testing import ScriptedModel
from tests.corral_server import SessionUnderTest
from tests.e2e.test_sandbox_network import agent_session, ran, worker
from tests.egress_world import EgressWorld, egress_world
from tests.git_server import GitServer, git_server
from tests.upstream_servers import TestAuthority

HOST = "git.internal.example"
TOKEN = "ghs_first"
NOTHING: dict[str, Any] = {"type": "limited", "allowed_hosts": []}


@dataclass
class Forge:
    """A world with a git server and a worker in it."""

    world: EgressWorld
    git: GitServer

    async def session(self, *resources: dict[str, Any], networking: Any = None) -> SessionUnderTest:
        """A session with these resources, which may reach nothing else."""
        return await agent_session(self.world, networking or NOTHING, resources=list(resources))


def repository(url: str, token: str | None = TOKEN, **fields: Any) -> dict[str, Any]:
    """The resource of a repository."""
    given = {} if token is None else {"authorization_token": token}
    return {"type": "github_repository", "url": url, **given, **fields}


async def errors(session: SessionUnderTest) -> list[Any]:
    """The errors in a session's log."""
    return [event.error for event in await session.events() if event.type == "session.error"]


@asynccontextmanager
async def a_forge(database_url: str, model: ScriptedModel, folder: Path) -> AsyncGenerator[Forge]:
    """A git server, a gateway that may reach it, and a worker."""
    outside = TestAuthority(folder)
    async with git_server(outside.context(HOST), HOST) as git:
        gateway = Gateway(git_hosts=["github.com", git.authority])
        async with egress_world(database_url, model, folder, gateway=gateway, outside=outside) as world:
            async with worker(world, folder):
                yield Forge(world, git)


@pytest_asyncio.fixture
async def forge(database_url: str, model: ScriptedModel, open_folder: Path) -> AsyncGenerator[Forge]:
    """See `a_forge`."""
    async with a_forge(database_url, model, open_folder) as forge:
        yield forge


async def test_a_private_repository_is_there_and_its_token_is_not(forge: Forge) -> None:
    session = await forge.session(repository(forge.git.add("acme/api", TOKEN)))
    output, failed = await ran(
        session,
        "cd api && cat README.md && git status -sb && git remote -v && git log --oneline | wc -l &&"
        " grep -r ghs_ .git; env | grep ghs_; true",
    )
    assert not failed
    assert "hello" in output
    assert "## main...origin/main" in output
    assert f"origin\t{forge.git.url('acme/api')} (fetch)" in output
    assert "ghs_" not in output
    assert await errors(session) == []


async def test_fetch_and_push_work_from_inside(forge: Forge) -> None:
    session = await forge.session(repository(forge.git.add("acme/api", TOKEN)))
    output, failed = await ran(
        session,
        "cd api && git config user.name a && git config user.email a@example.com && git checkout -q -b fix &&"
        " echo fixed > fixed.txt && git add -A && git commit -qm fixed && git push -q origin fix &&"
        " git fetch -q && git branch -r",
    )
    assert not failed, output
    assert "origin/fix" in output
    bare = forge.git.bare("acme/api")
    assert forge.git.git(bare, "log", "-1", "--format=%s", "fix") == "fixed"


@pytest.mark.parametrize("branch", ["topic/one", "main"])
async def test_a_branch_is_checked_out(forge: Forge, branch: str) -> None:
    url = forge.git.add("acme/api", TOKEN)
    session = await forge.session(repository(url, checkout={"type": "branch", "name": branch}))
    output, failed = await ran(session, "cd api && git rev-parse --abbrev-ref HEAD '@{u}'")
    assert not failed, output
    assert output.split() == [branch, f"origin/{branch}"]


@pytest.mark.parametrize("digits", [40, 10])
async def test_a_commit_is_checked_out(forge: Forge, digits: int) -> None:
    url = forge.git.add("acme/api", TOKEN)
    sha = forge.git.git(forge.git.bare("acme/api"), "rev-parse", "main~1")
    checkout = {"type": "commit", "sha": sha[:digits]}
    session = await forge.session(repository(url, checkout=checkout, mount_path="/workspace/src/old"))
    output, failed = await ran(session, "cd src/old && git rev-parse HEAD && ls")
    assert not failed, output
    assert output.split() == [sha, "README.md"]


async def test_a_public_repository_needs_no_token(forge: Forge) -> None:
    session = await forge.session(repository(forge.git.add("acme/open"), None))
    output, failed = await ran(session, "cat open/README.md")
    assert not failed, output


@pytest.mark.parametrize(
    ("name", "token", "checkout", "kind"),
    [
        ("acme/api", "ghs_wrong", None, "repository_authentication_error"),
        ("acme/api", None, None, "repository_authentication_error"),
        ("acme/api", "ghs_barred", None, "repository_forbidden_error"),
        ("acme/none", TOKEN, None, "repository_not_found_error"),
        ("acme/api", TOKEN, {"type": "branch", "name": "nope"}, "repository_checkout_error"),
        ("acme/api", TOKEN, {"type": "commit", "sha": "0123456789" * 4}, "repository_checkout_error"),
    ],
)
async def test_a_failed_clone_is_told_and_the_session_goes_on(
    forge: Forge, name: str, token: str | None, checkout: Any, kind: str
) -> None:
    forge.git.add("acme/api", TOKEN)
    forge.git.forbidden.add("ghs_barred")
    url = forge.git.url(name)
    session = await forge.session(repository(url, token, checkout=checkout))
    output, failed = await ran(session, "ls -A | grep -v corral; echo on")
    assert (output, failed) == ("on", False)
    told = await errors(session)
    assert [(error.type, error.retry_status.type) for error in told] == [(kind, "retrying")]
    assert told[0].repository_url == url
    assert (await session.retrieve()).status == "idle"


async def test_a_new_token_takes_effect_at_once(forge: Forge) -> None:
    session = await forge.session(repository(forge.git.add("acme/api", TOKEN), "ghs_wrong"))
    await ran(session, "true")
    assert len(await errors(session)) == 1
    resource = (await session.retrieve()).resources[0]
    resources = forge.world.corral.client.beta.sessions.resources
    await resources.update(resource.id, session_id=session.id, authorization_token=TOKEN)
    output, failed = await ran(session, "cat api/README.md")
    assert not failed, output
    forge.git.tokens["acme/api"] = {"ghs_second"}
    output, failed = await ran(session, "git -C api fetch")
    assert failed
    await resources.update(resource.id, session_id=session.id, authorization_token="ghs_second")
    output, failed = await ran(session, "git -C api fetch")
    assert not failed, output


async def test_a_repository_that_is_added_later_is_there_at_the_next_call(forge: Forge) -> None:
    session = await forge.session()
    await ran(session, "true")
    body = repository(forge.git.add("acme/late", TOKEN))
    response = await forge.world.corral.client.post(
        f"/v1/sessions/{session.id}/resources", body=body, cast_to=object
    )
    assert response["mount_path"] == "/workspace/late"  # type: ignore[index]
    output, failed = await ran(session, "cat late/README.md")
    assert not failed, output


async def test_sessions_share_a_copy_and_each_needs_access_of_its_own(forge: Forge) -> None:
    url = forge.git.add("acme/api", TOKEN)
    first = await forge.session(repository(url))
    await ran(first, "ls api")
    second = await forge.session(repository(url, "ghs_wrong"))
    output, _ = await ran(second, "ls api 2>&1; ls /mnt 2>&1; true")
    assert "README.md" not in output
    third = await forge.session(repository(url))
    output, failed = await ran(third, "cat api/README.md")
    assert not failed, output


async def test_no_sandbox_is_made_for_a_repository_before_a_call_needs_it(forge: Forge) -> None:
    session = await forge.session(repository(forge.git.add("acme/api", TOKEN)))
    sent = await session.says("go", script=[{"text": "done"}])
    await session.idle(after=sent.data[0].id)
    assert forge.git.server is not None
    assert forge.git.server.asked == []
