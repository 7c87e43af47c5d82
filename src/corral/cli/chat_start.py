"""The session that a chat talks to: an existing one, or a new one on what is found or made for it."""

from typing import Any, Final

import msgspec

from corral.cli.api_client import ApiClient
from corral.cli.connection import Connection
from corral.cli.failure import Failure
from corral.cli.session_feed import require

AGENT: Final = "chat"
MODEL: Final = "claude-sonnet-4-5"
_ENVIRONMENT: Final = "default"
_LOOKED_THROUGH: Final = 100
"""Agents and environments among which one to use again is looked for; the newest come first."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for."""

    agent: str | None = None
    session: str | None = None
    model: str | None = None
    system: str | None = None
    environment: str | None = None
    ask: bool = False

    def check(self) -> None:
        """Raise `Failure` for wishes that do not go together."""
        new = ("agent", "model", "system", "environment", "ask")
        given = [f"--{name}" for name in new if getattr(self, name)]
        if self.session is not None and given:
            raise Failure(
                f"{', '.join(given)} cannot be changed in a session that exists.",
                "leave out --session to start a new one.",
            )


async def begin(api: ApiClient, connection: Connection, wanted: Wanted) -> tuple[dict[str, Any], bool]:
    """The session, and whether it is new.

    Raises:
        Failure: what was named does not exist, or the session has ended.
    """
    wanted.check()
    if wanted.session is not None:
        session = await require(api, wanted.session)
        if session["status"] == "terminated":
            raise Failure(
                f"Session {session['id']} has ended: nothing more can be said in it.",
                f"`corral session follow {session['id']} --from-start` shows it; "
                "`corral chat` starts a new one.",
            )
        return session, False
    agent = _overridden(wanted) if wanted.agent is not None else await _chat_agent(api, wanted)
    environment = wanted.environment or connection.environment_id or await _environment(api)
    return await api.post("/v1/sessions", {"agent": agent, "environment_id": environment}), True


def _overridden(wanted: Wanted) -> str | dict[str, Any]:
    assert wanted.agent is not None
    changes: dict[str, Any] = {}
    if wanted.model is not None:
        changes["model"] = wanted.model
    if wanted.system is not None:
        changes["system"] = wanted.system
    if wanted.ask:
        changes["tools"] = [_toolset(ask=True)]
    return {"type": "agent_with_overrides", "id": wanted.agent, **changes} if changes else wanted.agent


def _toolset(*, ask: bool) -> dict[str, Any]:
    policy = {"type": "always_ask" if ask else "always_allow"}
    return {"type": "agent_toolset_20260401", "default_config": {"permission_policy": policy}}


async def _chat_agent(api: ApiClient, wanted: Wanted) -> str:
    """An agent named `chat` of the wanted kind: that of last time, or a new one."""
    model = wanted.model or MODEL
    kind = f"{model} {'ask' if wanted.ask else 'allow'}"
    known = await api.get("/v1/agents", limit=_LOOKED_THROUGH)
    for agent in known["data"]:
        if (
            agent["name"] == AGENT
            and agent["metadata"].get("corral_chat") == kind
            and agent["version"] == 1
            and agent["system"] == wanted.system
        ):
            return agent["id"]
    made = await api.post(
        "/v1/agents",
        {
            "name": AGENT,
            "model": model,
            "tools": [_toolset(ask=wanted.ask)],
            "metadata": {"corral_chat": kind},
            **({} if wanted.system is None else {"system": wanted.system}),
        },
    )
    return made["id"]


async def _environment(api: ApiClient) -> str:
    known = await api.get("/v1/environments", limit=_LOOKED_THROUGH)
    for environment in known["data"]:
        if environment["name"] == _ENVIRONMENT:
            return environment["id"]
    made = await api.post("/v1/environments", {"name": _ENVIRONMENT, "config": {"type": "cloud"}})
    return made["id"]
