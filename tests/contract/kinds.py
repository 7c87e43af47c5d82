"""Each kind of resource that can be listed: how one is made, and how it leaves its list."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest_asyncio

from .conftest import Api

EVENTS: Final = [{"type": "user.message", "content": [{"type": "text", "text": "Run."}]}]


@dataclass(frozen=True)
class Ground:
    """What has to be there before some kinds can be made."""

    api: Api
    agent: str
    environment: str
    vault: str
    store: str
    session: str

    async def made(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What a POST gives."""
        return await ok(self.api.post(path, body))


@dataclass(frozen=True)
class Kind:
    """A kind of resource; `path` is that of its list, with fields of `Ground` in braces."""

    path: str
    make: Callable[[Ground, int], Awaitable[dict[str, Any]]]
    leave: str
    """How one leaves the list: a verb to post, or ``DELETE``."""
    times: tuple[str, ...] = ()
    """The bounds on ``created_at`` that the list takes."""
    metadata: str | None = None
    """How an update treats an empty value: ``keeps`` or ``deletes`` it; None where there is no metadata."""

    def at(self, ground: Ground) -> str:
        """The path of the list."""
        return self.path.format(**vars(ground))

    async def remove(self, ground: Ground, id: str) -> None:
        """Make one leave the list."""
        path = f"{self.at(ground)}/{id}"
        if self.leave == "DELETE":
            await ok(ground.api.http.delete(path))
        for verb in self.leave.split() if self.leave != "DELETE" else []:
            await ok(ground.api.post(f"{path}/{verb}"))


async def ok(response: Awaitable[Any]) -> Any:
    """The body of an answer that has to be 200."""
    answer = await response
    assert answer.status_code == 200, answer.text
    return answer.json()


def _plain(path: str, **fields: Any) -> Callable[[Ground, int], Awaitable[dict[str, Any]]]:
    async def make(ground: Ground, number: int) -> dict[str, Any]:
        body = {
            key: value.format(n=number) if isinstance(value, str) else value for key, value in fields.items()
        }
        return await ground.made(path.format(**vars(ground)), body)

    return make


async def _credential(ground: Ground, number: int) -> dict[str, Any]:
    auth = {"type": "static_bearer", "token": "t", "mcp_server_url": f"https://m{number}.example.com"}
    return await ground.made(f"/v1/vaults/{ground.vault}/credentials", {"auth": auth})


async def _deployment(ground: Ground, number: int) -> dict[str, Any]:
    where = {"agent": ground.agent, "environment_id": ground.environment}
    return await ground.made("/v1/deployments", {"name": f"D{number}", **where, "initial_events": EVENTS})


async def _dream(ground: Ground, number: int) -> dict[str, Any]:
    inputs = [
        {"type": "memory_store", "memory_store_id": ground.store},
        {"type": "sessions", "session_ids": [ground.session]},
    ]
    return await ground.made("/v1/dreams", {"inputs": inputs, "model": f"m{number}"})


async def _file(ground: Ground, number: int) -> dict[str, Any]:
    return await ok(ground.api.http.post("/v1/files", files={"file": (f"{number}.txt", b"x")}))


async def _skill(ground: Ground, number: int) -> dict[str, Any]:
    about = f"---\nname: s{number}\ndescription: d\n---\n".encode()
    return await ok(ground.api.http.post("/v1/skills", files=[("files[]", (f"s{number}/SKILL.md", about))]))


_BOTH: Final = ("gte", "lte")
KINDS: Final = {
    "agents": Kind("/v1/agents", _plain("/v1/agents", name="A{n}", model="m"), "archive", _BOTH, "keeps"),
    "environments": Kind(
        "/v1/environments", _plain("/v1/environments", name="E{n}"), "archive", metadata="deletes"
    ),
    "vaults": Kind("/v1/vaults", _plain("/v1/vaults", display_name="V{n}"), "archive", metadata="keeps"),
    "credentials": Kind("/v1/vaults/{vault}/credentials", _credential, "archive", metadata="keeps"),
    "memory_stores": Kind(
        "/v1/memory_stores", _plain("/v1/memory_stores", name="S{n}"), "archive", _BOTH, "keeps"
    ),
    "deployments": Kind("/v1/deployments", _deployment, "archive", _BOTH, "keeps"),
    "dreams": Kind("/v1/dreams", _dream, "cancel archive", ("gt", "lt")),
    "user_profiles": Kind(
        "/v1/user_profiles", _plain("/v1/user_profiles", name="P{n}"), "DELETE", metadata="deletes"
    ),
    "files": Kind("/v1/files", _file, "DELETE"),
    "skills": Kind("/v1/skills", _skill, "DELETE"),
}


@pytest_asyncio.fixture
async def ground(api: Api) -> Ground:
    """What some kinds need, and nothing of any kind that a test lists besides."""
    session = await api.session()
    return Ground(
        api,
        agent=session["agent"]["id"],
        environment=session["environment_id"],
        vault=(await ok(api.post("/v1/vaults", {"display_name": "V"})))["id"],
        store=(await ok(api.post("/v1/memory_stores", {"name": "S"})))["id"],
        session=session["id"],
    )
