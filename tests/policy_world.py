"""A server with a policy file and a scripted judge, for the tests of both."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from corral.policy.judge import prompt
from corral.settings import Brain, Inference, Policy, Settings
from corral.testing import ScriptedModel
from tests.contract.test_sessions_create import TOOLSET
from tests.corral_server import Corral, SessionUnderTest, running_corral

JUDGE = prompt().splitlines()[0]
"""How a request for a judgement is told from the others."""


def settings(
    model: ScriptedModel, policy: str | None = None, folder: Path | None = None, **more: Any
) -> Settings:
    """The settings of a server on the scripted model, with `policy` as its file."""
    path = None
    if policy is not None:
        assert folder is not None
        path = folder / "policy.yaml"
        path.write_text(policy)
    return Settings(
        inference=Inference(
            provider="gateway",
            base_url=model.base_url,
            retry_backoff_seconds=0.01,
            retry_backoff_max_seconds=0.05,
        ),
        brain=Brain(lease_seconds=2.0),
        policy=Policy(file=None if path is None else str(path), **more),
    )


@asynccontextmanager
async def policed(
    database_url: str,
    model: ScriptedModel,
    policy: str | None = None,
    folder: Path | None = None,
    **more: Any,
) -> AsyncGenerator[Corral]:
    """A running server with a policy file."""
    async with running_corral(
        database_url, model, settings=settings(model, policy, folder, **more)
    ) as corral:
        yield corral


def verdict(decision: str, reason: str = "It does what was asked.") -> dict[str, Any]:
    """A step by which the scripted model judges."""
    return {"tools": [{"name": "verdict", "input": {"reason": reason, "decision": decision}}]}


def judges(model: ScriptedModel, decision: str, *, of: str | None = None, **step: Any) -> None:
    """Have the scripted model judge so: all calls, or those of bash whose command begins with a text."""
    # Everywhere else in the document quotes are escaped.
    condition: dict[str, Any] = {} if of is None else {"if_text_contains": f'"input":{{"command":"{of}'}
    model.rule(if_system_contains=JUDGE, **condition, **{**verdict(decision), **step})


def is_for_judge(body: Any) -> bool:
    """Whether a recorded request asks for a judgement."""
    return JUDGE in str(body.get("system"))


def case_of(body: Any) -> dict[str, Any]:
    """What a judge was shown."""
    text: str = body["messages"][0]["content"][0]["text"]
    return msgspec.json.decode(text.partition("<case>\n")[2].partition("\n</case>")[0])


def toolset(**policies: str) -> dict[str, Any]:
    """The agent toolset with these tools' policies."""
    configs = [{"name": name, "permission_policy": {"type": policy}} for name, policy in policies.items()]
    return {**TOOLSET, "configs": configs}


def bash(command: str) -> dict[str, Any]:
    """A call of bash as a script has it."""
    return {"name": "bash", "input": {"command": command}}


async def calling(
    corral: Corral,
    *calls: dict[str, Any],
    tools: tuple[Any, ...],
    kind: str = "self_hosted",
    says: str = "go",
) -> tuple[SessionUnderTest, Any]:
    """A session whose model has made these calls, and the idle that followed."""
    session = await corral.session(*tools, kind=kind)
    await session.says(says, script=[{"tools": list(calls)}, {"text": "they said: {result}"}])
    return session, await session.idle()


async def decisions(corral: Corral, object_id: str) -> list[dict[str, Any]]:
    """The audit trail's decisions on calls, oldest first."""
    found: Any = await corral.client.get(
        "/corral/v1/audit",
        cast_to=object,
        options={"params": {"actor_kind": "policy", "object_id": object_id}},
    )
    return list(reversed(found["data"]))
