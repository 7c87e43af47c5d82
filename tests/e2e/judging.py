"""Outcomes and what a scripted grader says of the work: what their tests share."""

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from corral.testing import ScriptedModel
from tests.corral_server import Corral, SessionUnderTest

GRADER: Final = "You judge whether a piece of work meets the rubric"
"""How the grader's prompt begins, by which its requests are known."""


def outcome(*steps: dict[str, Any], rubric: str = "It has figures.", **fields: Any) -> dict[str, Any]:
    """An outcome, the work on which the agent plays as these steps."""
    return {
        "type": "user.define_outcome",
        "description": f"a report\nscript: {msgspec.json.encode(list(steps)).decode()}\n",
        "rubric": {"type": "text", "content": rubric},
        **fields,
    }


def verdict(result: str, explanation: str = "as the rubric has it", **met: bool) -> dict[str, Any]:
    """A call by which the grader gives its verdict; `met` are criteria."""
    criteria = [{"criterion": name, "reason": "seen", "met": is_met} for name, is_met in met.items()]
    given = {"criteria": criteria, "explanation": explanation, "result": result}
    return {"name": "submit_verdict", "input": given}


def reading(path: str, **fields: Any) -> dict[str, Any]:
    """A call by which the grader reads on."""
    return {"name": "read_deliverable", "input": {"path": path, **fields}}


def grades(model: ScriptedModel, *calls: dict[str, Any], **step: Any) -> None:
    """What the grader says in each evaluation, from the first on; `step` are further fields of answers."""
    for number, call in enumerate(calls, 1):
        model.rule(
            if_system_contains=GRADER,
            if_text_contains=f"evaluation {number} of",
            tools=[call],
            **step,
        )


def asked(model: ScriptedModel) -> list[dict[str, Any]]:
    """The requests to the grader."""
    return [request for request in model.requests() if GRADER in str(request.get("system"))]


def shown(request: dict[str, Any]) -> str:
    """All text of the first message of a request."""
    return "\n".join(block.get("text", f"[{block['type']}]") for block in request["messages"][0]["content"])


async def ends(session: SessionUnderTest) -> list[Any]:
    """The ends of the session's evaluations."""
    return await session.events(types=["span.outcome_evaluation_end"])


async def starts(session: SessionUnderTest) -> list[Any]:
    """Their beginnings."""
    return await session.events(types=["span.outcome_evaluation_start"])


async def results(session: SessionUnderTest) -> list[str]:
    """What the session shows of its outcomes."""
    return [one.result for one in (await session.retrieve()).outcome_evaluations]


async def said(session: SessionUnderTest) -> list[str]:
    """What the agent has said."""
    return [event.content[0].text for event in await session.events(types=["agent.message"])]


async def hands_over(corral: Corral, session: SessionUnderTest, path: str, content: bytes) -> None:
    """A file that the session's agent has put out, as a worker sends it."""

    async def pieces() -> AsyncGenerator[bytes]:
        yield content

    blob = await corral.services.files.blobs.receive(pieces())
    await corral.services.outputs.put(session.id, path, blob)
