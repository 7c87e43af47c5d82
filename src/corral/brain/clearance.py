"""Whether the calls of a model's answer may run: asked before any of them enters the log.

The operator's policy decides at once; calls of tools whose policy is `auto` are judged side by side,
identical ones once. What comes of it is written with the calls, in the commit that takes up the answer: so
there is no call in the log that nothing has been decided on, and no decision is ever made again. A brain that
dies in between has written nothing, and the model is asked anew. An interrupt ends the judging; what was not
judged by then asks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, LiteralString

import msgspec
import structlog

from corral.brain.claims import Claim
from corral.brain.judge_context import JudgeContext
from corral.brain.permission import Agent
from corral.brain.proposals import Proposal, propose, uses
from corral.brain.rulings import UNGATED, Cleared, Judged, added, is_for_the_judge, rule
from corral.brain.voice import Voice
from corral.inference.provider import InferenceProvider, ModelResponse
from corral.policy.asking import asked
from corral.policy.facts import AgentFacts, CallFacts, Surroundings
from corral.policy.judge import Case, Verdict, clipped, judge_request, unjudged
from corral.policy.patterns import host_of
from corral.policy.rules import GateDecision, Policy
from corral.store.database import Database

_AT_A_TIME: Final = 8
"""Calls of one answer that are judged at the same time."""
_LARGE_INPUT: Final = 16_384
"""Characters of input above which rules are held against it off the event loop."""
_LONGEST_PURPOSE: Final = 6_000
_SURROUNDINGS: Final[LiteralString] = """
select e.name, e.metadata::text as environment, s.metadata::text as session, s.vault_ids,
    (select v.config -> 'metadata' from agent_versions v
        where v.agent_id = s.agent_id and v.version = s.agent_version)::text as agent
from sessions s join environments e on e.id = s.environment_id where s.id = %s
"""

_log = structlog.get_logger(__name__)


class JudgeOffer(msgspec.Struct, frozen=True):
    """The judge that a server has. Without a `model` it is the agent's own."""

    model: str | None = None
    timeout: float = 20.0
    """Seconds that a judgement may take."""


class PolicyOffer(msgspec.Struct, frozen=True):
    """What a server decides calls by, besides the agents' own policies."""

    gate: Policy | None = None
    judge: JudgeOffer | None = None


NO_POLICY: Final = PolicyOffer()


class Clearance:
    """That of one thread. `agents` are its own and the one that it works for.

    `affordable` says whether a request to a model may be made: that there is budget left once the answer's
    own usage is counted, and a list price where there is a budget. `priced` is what an answer adds to the
    session's usage.
    """

    def __init__(
        self,
        claim: Claim,
        agents: Sequence[Agent],
        offer: PolicyOffer,
        context: JudgeContext,
        *,
        database: Database,
        provider: InferenceProvider,
        affordable: Callable[[str, Mapping[str, int]], bool],
        priced: Callable[[ModelResponse, str], dict[str, int]],
    ) -> None:
        self._claim = claim
        self._agents = agents
        self._offer = offer
        self._context = context
        self._database = database
        self._provider = provider
        self._affordable = affordable
        self._priced = priced

    async def clear(
        self, voice: Voice, answer: ModelResponse, interrupted: Callable[[], Awaitable[None]]
    ) -> Cleared:
        """Rule on the calls of an answer. `interrupted` returns once the client has interrupted."""
        proposals = [propose(voice, block) for block in uses(answer)]
        if not proposals:
            return UNGATED
        gate = self._offer.gate
        gated: Sequence[GateDecision | None] = [None] * len(proposals)
        if gate is not None:
            gated = await self._gated(gate, proposals)
        spent = self._priced(answer, str(self._agents[0]["model"]["id"]))
        judged, usage = await self._judged(voice.thread_id, proposals, gated, spent, interrupted)
        digest = "" if gate is None else gate.digest
        rulings = (
            rule(proposal, decision, verdict, digest)
            for proposal, decision, verdict in zip(proposals, gated, judged, strict=True)
        )
        return Cleared(tuple(rulings), usage)

    async def _gated(self, gate: Policy, proposals: Sequence[Proposal]) -> list[GateDecision]:
        agents = tuple(AgentFacts(str(agent["name"]), agent.get("id")) for agent in self._agents)
        around = await self._surroundings()
        urls = {
            str(server["name"]): str(server["url"]) for server in self._agents[0].get("mcp_servers") or ()
        }
        calls = [
            CallFacts(one.tool, one.input, agents, around, host_of(urls.get(one.server_name or "", "")))
            for one in proposals
        ]
        size = sum(len(msgspec.json.encode(call.input)) for call in calls)
        if size <= _LARGE_INPUT:
            return [gate.decide(call) for call in calls]
        return await asyncio.to_thread(lambda: [gate.decide(call) for call in calls])

    async def _surroundings(self) -> Surroundings:
        # As they are now: whoever tags an environment or a session means the calls from then on.
        row = await self._database.fetch_one(_SURROUNDINGS, (self._claim.session_id,))
        assert row is not None
        return Surroundings(
            self._claim.environment_id,
            row["name"],
            msgspec.json.decode(row["environment"]),
            msgspec.json.decode(row["session"]),
            msgspec.json.decode(row["agent"] or "{}"),
            tuple(row["vault_ids"]),
        )

    async def _judged(
        self,
        thread_id: str,
        proposals: Sequence[Proposal],
        gated: Sequence[GateDecision | None],
        spent: Mapping[str, int],
        interrupted: Callable[[], Awaitable[None]],
    ) -> tuple[list[Judged | None], dict[str, int]]:
        offer = self._offer.judge
        wanted = {
            n: _key(proposal)
            for n, (proposal, gate) in enumerate(zip(proposals, gated, strict=True))
            if is_for_the_judge(proposal, gate)
        }
        if offer is None or not wanted:
            return [None] * len(proposals), {}
        model = offer.model or str(self._agents[0]["model"]["id"])
        places = asyncio.Semaphore(_AT_A_TIME)
        may = self._affordable(model, spent)
        judging = {
            key: asyncio.create_task(self._judge(thread_id, proposals[n], model, offer.timeout, places, may))
            for key, n in {key: n for n, key in wanted.items()}.items()
        }
        watching: asyncio.Future[Any] = asyncio.ensure_future(interrupted())
        every: asyncio.Future[Any] = asyncio.gather(*judging.values())
        try:
            await asyncio.wait({every, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            done = {key: task.result() for key, task in judging.items() if task.done()}
        finally:
            every.cancel()
            watching.cancel()
            ended: list[asyncio.Future[Any]] = [*judging.values(), every, watching]
            await asyncio.gather(*ended, return_exceptions=True)
        cut = (unjudged("the user interrupted"), dict[str, int]())
        usage: dict[str, int] = {}
        for _, used in done.values():
            usage = added(usage, used)
        found = {n: Judged(done.get(key, cut)[0], model) for n, key in wanted.items()}
        return [found.get(n) for n in range(len(proposals))], usage

    async def _judge(
        self,
        thread_id: str,
        proposal: Proposal,
        model: str,
        timeout: float,
        places: asyncio.Semaphore,
        affordable: bool,
    ) -> tuple[Verdict, dict[str, int]]:
        """One judgement and what it used. Whatever goes wrong, it is a verdict: that there is none."""
        request = judge_request(self._case(thread_id, proposal), model, self._claim.session_id)
        if request is None:
            return unjudged("the input is too long to be judged"), {}
        if not affordable:
            return unjudged("the session's budget does not allow a judgement"), {}
        try:
            async with places:
                verdict, answer = await asked(self._provider, request, timeout)
        except Exception:
            _log.exception("judging a call failed inside; it asks", tool=proposal.tool)
            return unjudged("the judging failed inside the server"), {}
        if verdict.failure is not None:
            session_id = self._claim.session_id
            _log.warning("a call could not be judged; it asks", session_id=session_id, reason=verdict.failure)
        return verdict, {} if answer is None else self._priced(answer, model)

    def _case(self, thread_id: str, proposal: Proposal) -> Case:
        return Case(
            tool=proposal.tool,
            about=proposal.about,
            input=proposal.input,
            user=self._context.user(),
            application=[*self._purpose(), *self._context.application()],
            seen=self._context.seen(thread_id),
        )

    def _purpose(self) -> list[str]:
        """What the session's own agent is for. That of a helper may have been written by a model."""
        system: Any = self._agents[-1].get("system")
        return [clipped(system, _LONGEST_PURPOSE)] if isinstance(system, str) and system.strip() else []


def _key(proposal: Proposal) -> tuple[str, bytes]:
    return proposal.tool, msgspec.json.encode(proposal.input)
