"""Makes the resources that tests name, fresh each time, through the public API.

Every method returns what the server answered; each raises `Refused` if the server does not make it.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from tests.conformance.sdk import uploads
from tests.conformance.sdk.keys import EnvironmentKeys
from tests.conformance.sdk.public_api import PublicApi, Refused

Made = dict[str, Any]

MCP_URL: Final = "https://example-server.modelcontextprotocol.io/sse"
FAR: Final = "2099-12-31T23:59:59Z"
TOOLSET: Final[Mapping[str, Any]] = {"type": "agent_toolset_20260401"}

_DELEGATE: Final = (
    "Use ant__create_agent, or send_to_agent, to ask the agent named Greeter to say hello, and wait for its "
    "answer."
)
_IDLE_SECONDS: Final = 30.0
_CLAIM_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.05
_SETTLED: Final = frozenset({"idle", "terminated"})


class NotMade(Exception):
    """The server accepted every request, and yet what was asked for did not come into being."""


class Workshop:
    """Makes resources on one server. ``model`` is the id of the model that its agents use."""

    def __init__(self, api: PublicApi, keys: EnvironmentKeys, model: str) -> None:
        self.api = api
        self.model = model
        self._keys = keys
        self._workplaces: dict[str, tuple[str, str | None]] = {}
        self._making_workplace = asyncio.Lock()

    async def agent(self, **fields: Any) -> Made:
        """An agent with the built-in tools."""
        return await self.api.post(
            "/v1/agents", {"name": "Conformance", "model": self.model, "tools": [TOOLSET], **fields}
        )

    async def environment(self, kind: str = "cloud") -> Made:
        """An environment."""
        return await self.api.post("/v1/environments", {"name": "conformance", "config": {"type": kind}})

    async def session(self, **fields: Any) -> Made:
        """A session that nothing has happened in; on an environment and with an agent of its own."""
        agent = fields.pop("agent", None) or (await self.agent())["id"]
        environment = fields.pop("environment_id", None) or (await self.environment())["id"]
        return await self.api.post("/v1/sessions", {"agent": agent, "environment_id": environment, **fields})

    async def worked_session(self, text: str = "Say hello.", **fields: Any) -> Made:
        """A session with a finished turn in it, so that it has events to show."""
        message = {"type": "user.message", "content": [{"type": "text", "text": text}]}
        made = await self.session(initial_events=[message], **fields)
        return await self.idle(made["id"])

    async def idle(self, session_id: str) -> Made:
        """The session, once it is idle; as it is after 30 seconds, if it is not by then."""
        deadline = time.monotonic() + _IDLE_SECONDS
        while True:
            session = await self.api.get(f"/v1/sessions/{session_id}")
            if session["status"] in _SETTLED or time.monotonic() > deadline:
                return session
            await asyncio.sleep(_LOOK_SECONDS)

    async def primary_thread(self, session_id: str) -> str:
        """The id of the thread that every session has."""
        return (await self.api.get(f"/v1/sessions/{session_id}/threads"))["data"][0]["id"]

    async def delegated_session(self) -> tuple[str, str]:
        """A session whose agent has given work to another, and the thread of that other, both idle."""
        member = await self.agent(name="Greeter", tools=[])
        roster = {"type": "coordinator", "agents": [member["id"]]}
        agent = await self.agent(multiagent=roster)
        session = await self.worked_session(_DELEGATE, agent=agent["id"])
        threads: list[Made] = (await self.api.get(f"/v1/sessions/{session['id']}/threads"))["data"]
        for thread in threads:
            if thread["parent_thread_id"] is not None:
                return session["id"], thread["id"]
        raise NotMade("the agent was asked to give work to the agent of its roster, and no thread came of it")

    async def workplace(self, name: str) -> tuple[str, str | None]:
        """A self-hosted environment's id and its workers' key; one for each ``name`` in a run.

        Making a key may take a whole process, so work items share environments; items are fresh.
        """
        async with self._making_workplace:
            if name not in self._workplaces:
                made = await self.environment("self_hosted")
                self._workplaces[name] = (made["id"], await self._keys.key(made["id"]))
            return self._workplaces[name]

    async def waiting_work(self, name: str) -> tuple[str, str | None]:
        """A workplace in whose queue a session waits: its environment and key."""
        environment_id, key = await self.workplace(name)
        await self.session(environment_id=environment_id)
        return environment_id, key

    async def claimed_work(self) -> tuple[str, str | None, str]:
        """An environment, its key, and a work item of it that was polled and not yet acknowledged."""
        environment_id, key = await self.waiting_work("claimed")
        deadline = time.monotonic() + _CLAIM_SECONDS
        path = f"/v1/environments/{environment_id}/work/poll"
        while time.monotonic() < deadline:
            item = await self.api.get(path, [("block_ms", "900")], key=key)
            if item is not None:
                return environment_id, key, item["id"]
        raise NotMade(f"GET {path} offered no work within {_CLAIM_SECONDS:.0f} s of a session's start")

    async def begun_work(self) -> tuple[str, str | None, str]:
        """As `claimed_work`, and acknowledged."""
        environment_id, key, work_id = await self.claimed_work()
        await self.api.post(f"/v1/environments/{environment_id}/work/{work_id}/ack", key=key)
        return environment_id, key, work_id

    async def file(self) -> Made:
        """An uploaded file."""
        return await self.api.upload("/v1/files", *uploads.text_file())

    async def skill(self, name: str | None = None) -> Made:
        """A skill with one version."""
        return await self.api.upload("/v1/skills", *uploads.skill(name or uploads.skill_name()))

    async def skill_version(self, skill_id: str) -> Made:
        """The latest version of a skill."""
        return await self.api.get(f"/v1/skills/{skill_id}/versions/latest")

    async def vault(self) -> Made:
        """A vault."""
        return await self.api.post("/v1/vaults", {"display_name": "Conformance"})

    async def credential(self, vault_id: str, auth: Mapping[str, Any] | None = None) -> Made:
        """A credential: a bearer token unless said otherwise."""
        bearer = {"type": "static_bearer", "token": "bearer", "mcp_server_url": MCP_URL}
        return await self.api.post(f"/v1/vaults/{vault_id}/credentials", {"auth": auth or bearer})

    async def oauth_credential(self, vault_id: str) -> Made:
        """A credential of OAuth, with all that is needed for a refresh."""
        refresh = {
            "client_id": "conformance",
            "refresh_token": "refresh",
            "token_endpoint": "https://example-server.modelcontextprotocol.io/token",
            "token_endpoint_auth": {"type": "client_secret_basic", "client_secret": "secret"},
        }
        return await self.credential(
            vault_id,
            {
                "type": "mcp_oauth",
                "access_token": "access",
                "mcp_server_url": MCP_URL,
                "expires_at": FAR,
                "refresh": refresh,
            },
        )

    async def memory_store(self) -> Made:
        """A memory store."""
        return await self.api.post("/v1/memory_stores", {"name": "Conformance"})

    async def memory(self, store_id: str, path: str = "/notes/first.md") -> Made:
        """A memory."""
        return await self.api.post(
            f"/v1/memory_stores/{store_id}/memories", {"path": path, "content": "Use tabs."}
        )

    async def deployment(self, **fields: Any) -> Made:
        """A deployment without a schedule."""
        message = {"type": "user.message", "content": [{"type": "text", "text": "Say hello."}]}
        return await self.api.post(
            "/v1/deployments",
            {
                "name": "Conformance",
                "agent": fields.pop("agent", None) or (await self.agent())["id"],
                "environment_id": (await self.environment())["id"],
                "initial_events": [message],
                **fields,
            },
        )

    async def deployment_run(self, deployment_id: str) -> Made:
        """A run that was started by hand."""
        return await self.api.post(f"/v1/deployments/{deployment_id}/run")

    async def dream(self) -> Made:
        """A dream over a fresh store and a fresh session."""
        return await self.api.post("/v1/dreams", {"inputs": await self.dream_inputs(), "model": self.model})

    async def dream_inputs(self) -> list[Made]:
        """What a dream must be given: one memory store, and sessions."""
        store = await self.memory_store()
        session = await self.worked_session()
        return [
            {"type": "memory_store", "memory_store_id": store["id"]},
            {"type": "sessions", "session_ids": [session["id"]]},
        ]

    async def user_profile(self) -> Made:
        """A user profile."""
        return await self.api.post("/v1/user_profiles", {"name": "Conformance"})

    async def known_model(self) -> str:
        """The id of a model that the server lists."""
        return (await self.api.get("/v1/models"))["data"][0]["id"]

    async def next_page(self, path: str, query: list[tuple[str, str]], key: str | None = None) -> str | None:
        """A cursor of a list: where its first page of one item ends; None if that is all there is."""
        narrow = [(name, value) for name, value in query if name not in ("limit", "page")]
        try:
            listing = await self.api.get(path, [*narrow, ("limit", "1")], key=key)
        except Refused:
            return None  # the test's own request will show the refusal
        return listing.get("next_page") or None
