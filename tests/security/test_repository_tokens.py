"""A repository's token, and all the requests of a sandbox that try to have it for something else."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from corral.gateway.policy import Target, repository_of
from corral.settings import Gateway
from corral.testing import ScriptedModel
from corral.wire.repositories import parse_repository
from tests.corral_server import SessionUnderTest
from tests.e2e.conftest import model as model
from tests.egress_world import EgressWorld, egress_world
from tests.upstream_servers import Answer, Asked, TestAuthority, Upstream, telling, upstream

HOST = "git.internal.example"
OTHER = "other.internal.example"
TOKEN = "ghs_of_the_victim"
GIT = [
    "/acme/api/info/refs?service=git-upload-pack",
    "/acme/api.git/info/refs",
    "/acme/api/git-upload-pack",
    "/acme/api/git-receive-pack",
    "/acme/api.git/info/lfs/objects/batch",
]
ELSEWHERE = [
    "/acme/other/info/refs",
    "/acme/apix/info/refs",
    "/acme/api.gitx/info/refs",
    "/acme/api.git.git/info/refs",
    "/acme/api/../other/info/refs",
    "/acme/api/info/lfs/../../../other/info/refs",
    "/acme/api%2f..%2fother/info/refs",
    "/acme/api/..%2fother/info/refs",
    "/acme/api/%2e%2e/other/info/refs",
    "/acme/api/info/refs/../../../other/info/refs",
    "/acme/api/info/refs;/../../other",
    "/acme/api;x/info/refs",
    "/acme/api\\..\\other/info/refs",
    "//acme/api/info/refs",
    "/./acme/api/info/refs",
    "/acme//api/info/refs",
    "/x/../acme/api/info/refs",
    "/other/x?/acme/api/info/refs",
    "/ACME/API/info/refs",
    "/Acme/api/info/refs",
    "/acme/api",
    "/acme/api/",
    "/acme/api/settings/keys",
    "/acme/api/info/lfs/",
    "/acme/api/objects/info/alternates",
    "/api/v3/repos/acme/other/info/refs",
    "/",
]


@dataclass
class Thief:
    """A session with the repository `acme/api`, its connection, and the git server."""

    world: EgressWorld
    server: Upstream
    session: SessionUnderTest
    token: str

    async def tokens(self, *paths: str, server: Upstream | None = None, host: str = HOST) -> list[Any]:
        """What the server gets as authorization for each of these paths; None where it gets none."""
        server = server or self.server
        before = len(server.asked)
        for path in paths:
            client = await self.world.client(self.token)
            authority = f"{host}:{server.port}"
            assert (await client.connect(authority)).status == 200
            await client.ask("GET", path, host=authority)
        return [asked.header("authorization") for asked in server.asked[before:]]


async def responding(asked: Asked) -> Answer:
    """Answers; `/moved/...` leads to another repository of the same host, `/away/...` to another host."""
    if "moved" in (asked.header("x-how") or ""):
        return 301, [("location", "/acme/other/info/refs"), ("content-length", "0")], []
    return await telling(asked)


@pytest_asyncio.fixture
async def thief(database_url: str, model: ScriptedModel, tmp_path: Path) -> AsyncGenerator[Thief]:
    """See `Thief`. Its environment lets it reach every path of the git server, and another host."""
    outside = TestAuthority(tmp_path)
    async with upstream(outside.context(HOST), respond=responding) as server:
        gateway = Gateway(git_hosts=[f"{HOST}:{server.port}"])
        async with egress_world(database_url, model, tmp_path, gateway=gateway, outside=outside) as world:
            session, token = await attached(
                world, server, {"type": "limited", "allowed_hosts": [HOST, OTHER]}
            )
            yield Thief(world, server, session, token)


async def attached(world: EgressWorld, server: Upstream, networking: Any) -> tuple[SessionUnderTest, str]:
    """A session with the repository, and the token of its work item."""
    url = f"https://{HOST}:{server.port}/acme/api"
    resource = {"type": "github_repository", "url": url, "authorization_token": TOKEN}
    session = await world.session(networking, resources=[resource])
    return session, await world.token(session)


async def test_what_git_asks_for_its_repository_has_the_token(thief: Thief) -> None:
    """The one use of it; the sandbox sees it in no answer and no header of its own."""
    found = await thief.tokens(*GIT)
    assert len(found) == len(GIT)
    assert all(one is not None and one.startswith("Basic ") for one in found)


@pytest.mark.parametrize("path", ELSEWHERE)
async def test_no_other_path_has_it(thief: Thief, path: str) -> None:
    """Other repositories, ways around the path, its name in another case: the server gets no token."""
    assert await thief.tokens(path) == [None]


async def test_no_other_host_port_or_scheme_has_it(thief: Thief) -> None:
    """The same path elsewhere, or where the wire can be read: no token."""
    outside = thief.world.outside
    async with upstream(outside.context(OTHER)) as other, upstream(outside.context(HOST)) as port:
        assert await thief.tokens(*GIT[:2], server=other, host=OTHER) == [None, None]
        assert await thief.tokens(*GIT[:2], server=port) == [None, None]
    async with upstream() as plain:
        client = await thief.world.client(thief.token)
        authority = f"{HOST}:{plain.port}"
        assert (await client.ask("GET", f"http://{authority}{GIT[0]}", host=authority)).status == 200
        assert plain.asked[-1].header("authorization") is None


async def test_what_the_client_says_of_itself_is_not_replaced(thief: Thief) -> None:
    """An agent that authenticates as somebody else does so; the token is not added beside it."""
    client = await thief.world.client(thief.token)
    authority = f"{HOST}:{thief.server.port}"
    await client.connect(authority)
    await client.ask("GET", GIT[0], host=authority, headers=[("authorization", "Bearer mine")])
    got = [value for name, value in thief.server.asked[-1].headers if name == "authorization"]
    assert got == ["Bearer mine"]


async def test_a_redirect_of_the_git_server_does_not_take_it_along(thief: Thief) -> None:
    """The answer goes to the client as it is; what the client asks next is judged by itself."""
    client = await thief.world.client(thief.token)
    authority = f"{HOST}:{thief.server.port}"
    await client.connect(authority)
    reply = await client.ask("GET", GIT[0], host=authority, headers=[("x-how", "moved")])
    assert (reply.status, len(thief.server.asked)) == (301, 1)
    assert TOKEN not in repr(reply)
    assert await thief.tokens(reply.headers["location"]) == [None]


async def test_another_session_gets_nothing_by_asking_for_the_same_repository(thief: Thief) -> None:
    """A session without the repository, or with it and without a token, sends none."""
    networking = {"type": "limited", "allowed_hosts": [HOST]}
    bare = await thief.world.session(networking)
    url = f"https://{HOST}:{thief.server.port}/acme/api"
    resource = {"type": "github_repository", "url": url}
    without = await thief.world.session(networking, resources=[resource])
    for session in (bare, without):
        other = Thief(thief.world, thief.server, session, await thief.world.token(session))
        assert await other.tokens(*GIT[:2]) == [None, None]


async def test_a_detached_repository_has_no_token_at_once(thief: Thief) -> None:
    """On a connection that was open before: from the next request on there is none."""
    client = await thief.world.client(thief.token)
    authority = f"{HOST}:{thief.server.port}"
    await client.connect(authority)
    await client.ask("GET", GIT[0], host=authority)
    assert thief.server.asked[-1].header("authorization") is not None
    resource = (await thief.session.retrieve()).resources[0]
    resources = thief.world.corral.client.beta.sessions.resources
    await resources.delete(resource.id, session_id=thief.session.id)
    await client.ask("GET", GIT[0], host=authority)
    assert thief.server.asked[-1].header("authorization") is None


async def test_a_host_that_is_open_for_the_repository_alone_answers_nothing_else(thief: Thief) -> None:
    """Where the environment allows nothing, other paths of the git server are refused and do not arrive."""
    _, token = await attached(thief.world, thief.server, {"type": "limited", "allowed_hosts": []})
    authority = f"{HOST}:{thief.server.port}"
    for path in ELSEWHERE:
        client = await thief.world.client(token)
        await client.connect(authority)
        assert (await client.ask("GET", path, host=authority)).status == 403
    assert thief.server.asked == []


REST = Target("https", "api.github.com", 443)
SITE = Target("https", "github.com", 443)


@pytest.mark.parametrize(
    ("target", "path", "expected"),
    [
        (SITE, "/acme/api/info/refs?service=git-upload-pack", True),
        (SITE, "/Acme/API.git/git-receive-pack", True),
        (SITE, "/acme/api/settings", False),
        (SITE, "/acme/other/info/refs", False),
        (REST, "/repos/acme/api", True),
        (REST, "/repos/acme/api/pulls/1?per_page=2", True),
        (REST, "/repos/acme/api/../other", False),
        (REST, "/repos/acme/api/./../../x/y", False),
        (REST, "/repos/acme/api/%2e%2e/other", False),
        (REST, "/repos/acme/apix", False),
        (REST, "/repos/acme/api//pulls", False),
        (REST, "/repos/acme", False),
        (REST, "/user", False),
        (REST, "/graphql", False),
        (REST, "/orgs/acme/repos", False),
        (Target("https", "api.github.com", 8443), "/repos/acme/api", False),
        (Target("http", "api.github.com", 80), "/repos/acme/api", False),
        (Target("https", "uploads.github.com", 443), "/repos/acme/api", False),
        (Target("https", "api.github.com.example", 443), "/repos/acme/api", False),
    ],
)
def test_githubs_own_hosts_have_the_token_for_the_repository_alone(
    target: Target, path: str, expected: bool
) -> None:
    """Account-wide addresses, other repositories and look-alikes get no token."""
    repository = parse_repository("https://github.com/acme/api", ["github.com"], "resources", "sesrsc_1")
    assert (repository_of(target, path, [repository]) == repository) == expected
