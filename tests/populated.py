"""An API with one of everything in it, and a credential of each kind: for tests that go over all routes."""

import json
import re
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from typing import Any, Final

from corral.api.principals import ApiKey, EnvironmentKey, Kind, PoolKey, WorkToken
from corral.api.routing import Route
from tests.contract.conftest import Api

_TEXT: Final = {"type": "text", "text": "hello"}
_PDF: Final = b"%PDF-1.4\n%%EOF\n"


@dataclass(frozen=True)
class World:
    """What there is."""

    api: Api
    ids: dict[str, str]
    """An id for each parameter of a path; made up where there is nothing of the kind."""
    keys: dict[Kind, str]
    worked: str
    """The session whose work item is claimed; the work token is for it."""

    def path(self, route: Route) -> str:
        """The route's path with ids of things that exist."""
        ids = self.own(route)
        return re.sub(r"{(\w+)}", lambda found: ids.get(found[1], "none_01"), route.path)

    def own(self, route: Route) -> dict[str, str]:
        """The ids that the credential of `headers` reaches."""
        mine = ApiKey in route.callers or WorkToken not in route.callers
        return self.ids if mine else {**self.ids, "session_id": self.worked}

    def headers(self, route: Route) -> dict[str, str]:
        """A credential that may call the route: an application's where it may."""
        for kind in (ApiKey, WorkToken, EnvironmentKey, PoolKey):
            if kind in route.callers:
                return {"authorization": f"Bearer {self.keys[kind]}"}
        return {}


async def populated(api: Api) -> World:
    """Make one of everything through the API itself."""
    api.services.warm.set()
    environment = (await api.environment(config={"type": "self_hosted"}))["id"]
    agent = (await api.agent(tools=[{"type": "agent_toolset_20260401"}]))["id"]
    file = await _made(
        api,
        "/v1/files",
        files={"file": ("a.pdf", _PDF, "application/pdf")},
        data={"expires_in_seconds": 7200},
    )
    store = (await _made(api, "/v1/memory_stores", json={"name": "notes"}))["id"]
    memory = await _made(
        api, f"/v1/memory_stores/{store}/memories", json={"path": "/a/b.md", "content": "remember"}
    )
    worked = (await api.session(agent=agent, environment_id=environment))["id"]
    session = await api.session(
        agent=agent,
        resources=[
            {"type": "file", "file_id": file["id"]},
            {"type": "memory_store", "memory_store_id": store},
        ],
        initial_events=[{"type": "user.message", "content": [_TEXT]}],
    )
    threads = (await api.get(f"/v1/sessions/{session['id']}/threads")).json()["data"]
    environment_key = await api.environment_key(environment)
    await api.services.work.ensure(worked, environment)
    async with api.client(environment_key) as worker:
        item: Any = await worker.beta.environments.work.poll(environment)
    ids = {
        "agent_id": agent,
        "environment_id": environment,
        "file_id": file["id"],
        "memory_store_id": store,
        "memory_id": memory["id"],
        "memory_version_id": memory["memory_version_id"],
        "session_id": session["id"],
        "thread_id": threads[0]["id"],
        "resource_id": session["resources"][0]["id"],
        "work_id": item.id,
        **(await _vault(api)),
        **(await _extras(api)),
        **(await _deployment(api, agent, environment)),
    }
    keys: dict[Kind, str] = {
        ApiKey: api.api_key,
        EnvironmentKey: environment_key,
        PoolKey: await api.pool_key(),
        WorkToken: _token(item.secret),
    }
    return World(api, ids, keys, worked)


async def _vault(api: Api) -> dict[str, str]:
    vault = (await _made(api, "/v1/vaults", json={"display_name": "keys"}))["id"]
    auth = {"type": "static_bearer", "token": "t", "mcp_server_url": "https://mcp.example.com"}
    credential = await _made(api, f"/v1/vaults/{vault}/credentials", json={"auth": auth})
    return {"vault_id": vault, "credential_id": credential["id"]}


async def _extras(api: Api) -> dict[str, str]:
    hook = {"url": "https://hooks.example.com/corral", "events": ["session.status_idled"]}
    profile = await _made(api, "/v1/user_profiles", json={"name": "somebody"})
    about = b"---\nname: my-skill\ndescription: Does things.\n---\n\n# How\n"
    skill = await _made(api, "/v1/skills", files=[("files[]", ("my-skill/SKILL.md", about))])
    return {
        "webhook_id": (await _made(api, "/corral/v1/webhooks", json=hook))["id"],
        "user_profile_id": profile["id"],
        "skill_id": skill["id"],
    }


async def _deployment(api: Api, agent: str, environment: str) -> dict[str, str]:
    deployment = await _made(
        api,
        "/v1/deployments",
        json={
            "name": "nightly",
            "agent": agent,
            "environment_id": environment,
            "initial_events": [{"type": "user.message", "content": [_TEXT]}],
            "schedule": {"type": "cron", "expression": "0 3 * * *", "timezone": "Europe/Oslo"},
        },
    )
    run = await _made(api, f"/v1/deployments/{deployment['id']}/run")
    return {"deployment_id": deployment["id"], "deployment_run_id": run["id"]}


async def _made(api: Api, path: str, **parts: Any) -> Any:
    response = await api.http.post(path, **parts)
    assert response.status_code == 200, response.text
    return response.json()


def _token(secret: str) -> str:
    return json.loads(urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))["sessions_token"]
