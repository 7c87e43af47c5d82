"""A server with brains, a gateway and an MCP server, for tests of sessions that use MCP tools."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from corral.settings import Brain, Gateway, Inference, Policy, Settings, Vault
from corral.store.database import Database
from corral.testing import ScriptedModel
from corral.vault.keys import PrivateKey
from tests.corral_server import Corral, SessionUnderTest, running_corral
from tests.mcp_parts import GatewayUnderTest, McpUnderTest, gateway_at_work, mcp_server

KEY = PrivateKey.generate()
"""What opens the secrets of these tests."""
ALLOW: dict[str, Any] = {"permission_policy": {"type": "always_allow"}}


def settings_with(gateway_url: str | None, model: ScriptedModel, **gateway: Any) -> Settings:
    """A server's settings, with this gateway."""
    return Settings(
        inference=Inference(
            provider="gateway",
            base_url=model.base_url,
            retry_backoff_seconds=0.01,
            retry_backoff_max_seconds=0.05,
        ),
        brain=Brain(lease_seconds=2.0),
        vault=Vault(public_key=KEY.public.text),
        gateway=Gateway(url=gateway_url, **gateway),
    )


@dataclass(frozen=True)
class McpHouse:
    """Everything that a session with an MCP server needs."""

    corral: Corral
    gateway: GatewayUnderTest
    server: McpUnderTest

    async def session(
        self, *, policy: dict[str, Any] | None = None, url: str | None = None, **fields: Any
    ) -> SessionUnderTest:
        """A session whose agent has the server under the name ``calc``; every tool is allowed by default."""
        toolset: dict[str, Any] = {
            "type": "mcp_toolset",
            "mcp_server_name": "calc",
            **(policy if policy is not None else {"default_config": ALLOW}),
        }
        agent = await self.corral.agent(
            *fields.pop("tools", ()),
            toolset,
            mcp_servers=[{"type": "url", "name": "calc", "url": url or self.server.url}],
        )
        made = await self.corral.client.beta.sessions.create(
            agent=agent,
            environment_id=fields.pop("environment_id", None) or await self.corral.environment(),
            **fields,
        )
        return SessionUnderTest(self.corral, made.id)

    async def vault(self, auth: dict[str, Any]) -> str:
        """The id of a vault with one credential, for this server unless `auth` names another."""
        vault = await self.corral.client.beta.vaults.create(display_name="V")
        sdk: Any = self.corral.client.beta.vaults.credentials
        await sdk.create(vault.id, auth={"mcp_server_url": self.server.url, **auth})
        return vault.id


@asynccontextmanager
async def mcp_house(
    database_url: str,
    model: ScriptedModel,
    *,
    accepted: list[str] | None = None,
    sse: bool = False,
    policy: Policy | None = None,
    **gateway: Any,
) -> AsyncGenerator[McpHouse]:
    """A house whose MCP server accepts these tokens; None: everybody."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(mcp_server(accepted=accepted, sse=sse))
        database = await stack.enter_async_context(Database(database_url))
        at_work = await stack.enter_async_context(gateway_at_work(database, KEY, **gateway))
        settings = msgspec.structs.replace(settings_with(at_work.url, model), policy=policy or Policy())
        corral = await stack.enter_async_context(running_corral(database_url, model, settings=settings))
        yield McpHouse(corral, at_work, server)


def calls(name: str, **given: Any) -> dict[str, Any]:
    """A step of a script in which the model calls a tool of ``calc``, under the name that it knows."""
    return {"tools": [{"name": f"mcp__calc__{name}", "input": given}]}


async def last_message(session: SessionUnderTest) -> str:
    """What the agent said last."""
    return str((await session.events(types=["agent.message"]))[-1].content[0].text)
