"""Asking a model to judge: one request, one verdict, whatever goes wrong."""

import asyncio

from corral.inference.provider import InferenceProvider, ModelFailed, ModelRequest, ModelResponse, answer_of
from corral.policy.judge import Verdict, unjudged, verdict_of


async def asked(
    provider: InferenceProvider, request: ModelRequest, timeout: float
) -> tuple[Verdict, ModelResponse | None]:
    """The verdict that a model gives within `timeout` seconds, and its answer. A failure is a verdict too."""
    try:
        async with asyncio.timeout(timeout):
            answer = await answer_of(provider, request)
    except TimeoutError:
        return unjudged(f"no verdict within {timeout:g} seconds"), None
    except ModelFailed as failure:
        return unjudged(failure.message), None
    return verdict_of(answer), answer
