"""What one thread of a session works with: its agent's voice, tools and skills, and what its model saw."""

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from corral.brain import emit
from corral.brain.asked import asked
from corral.brain.claims import Claim
from corral.brain.clearance import Clearance, PolicyOffer
from corral.brain.compaction import summary_request
from corral.brain.context_rules import ContextSettings
from corral.brain.delegation import delegation_of
from corral.brain.file_sources import FileReader, FileSources
from corral.brain.history import HISTORY_TOOL, History
from corral.brain.history import TOOL as HISTORY
from corral.brain.judge_context import JudgeContext
from corral.brain.mcp_shelf import McpGateway, McpShelf
from corral.brain.media_limits import MediaLimits
from corral.brain.own_tools import OwnTool
from corral.brain.permission import Agent, enabled_sandbox_tools
from corral.brain.recollection import ThreadRecollection
from corral.brain.skills_note import SkillShelf
from corral.brain.toolset import system_prompt, tool_definitions
from corral.brain.transcript import Transcript
from corral.brain.voice import Voice
from corral.brain.web_tools import WebOffer, WebSearches, web_definitions
from corral.inference.prices import PriceTable
from corral.inference.provider import InferenceProvider, ModelRequest
from corral.session.events import Event
from corral.session.thread_state import ThreadState
from corral.store.database import Database
from corral.wire.model_table import ModelCapabilities

_log = structlog.get_logger(__name__)


class ThreadKit:
    """Made once for each thread of a held session; fed the thread's events in order. `close` ends it.

    `spent` says whether the session's budget is used up, `affordable` whether it allows a request to a model.
    """

    def __init__(
        self,
        claim: Claim,
        thread: ThreadState,
        *,
        database: Database,
        files: FileReader,
        gateway: McpGateway | None,
        prices: PriceTable,
        provider: InferenceProvider,
        web: WebOffer,
        policy: PolicyOffer,
        judge_context: JudgeContext,
        spent: Callable[[], bool],
        context: ContextSettings,
        affordable: Callable[[str, Mapping[str, int]], bool],
    ) -> None:
        self.agent: Agent = thread.agent or claim.agent
        self._web = web
        self._chain = [self.agent] if thread.agent is None else [self.agent, claim.agent]
        """The agent, and the one that it works for."""
        searches = WebSearches(
            claim,
            self._chain,
            web,
            database=database,
            provider=provider,
            spent=spent,
            priced=lambda answer: emit.usage_of(self.voice, answer),
        )
        self.mcp = McpShelf(
            claim,
            self.agent,
            database,
            gateway,
            thread_id=thread.id if thread.parent else None,
            made_here=searches.made_here,
        )
        self.clearance = Clearance(
            claim,
            self._chain,
            policy,
            judge_context,
            database=database,
            provider=provider,
            affordable=affordable,
            priced=lambda answer, model: emit.usage_of(self.voice, answer, model),
        )
        self.transcript = Transcript(self.agent["model"]["id"])
        self._claim = claim
        self._shelf = SkillShelf(self.agent, claim.skills, self_hosted=claim.self_hosted)
        self._sources = FileSources(files)
        self._context = context
        self.history = History(database, claim.session_id, thread.id)
        self._looking_back: dict[str, OwnTool] = {}
        """The tool that reads the thread's own log, once that holds what its model is not shown."""
        self._ready = False
        self.voice = Voice(
            thread.id,
            self.agent,
            claim.self_hosted,
            prices,
            ChainMap(self._looking_back, dict(self._shelf.tools)),
            self.mcp.tools,
            web.names,
            delegation_of(thread, self.agent),
            claim.thread_id if thread.parent else "",
        )

    async def prepare(self) -> None:
        """Make ready what takes time, before the thread's first action."""
        if not self._ready:
            await self._shelf.prepare()
            await self.mcp.prepare()
            self._ready = True

    async def close(self) -> None:
        """Let go of MCP calls under way."""
        await self.mcp.close()

    def add(self, event: Event) -> None:
        """Take in one event of the thread."""
        self.transcript.add(event)
        self._shelf.add(event)

    def kept(self) -> ThreadRecollection:
        """What the thread has taken from the log; to be encoded at once."""
        return ThreadRecollection(self.transcript, self._shelf.kept())

    def can_recall(self, kept: ThreadRecollection) -> bool:
        """Whether `kept` was made by the kit of this very agent."""
        return kept.transcript.model == self.agent["model"]["id"] and kept.skills.skills == self._shelf.count

    def recall(self, kept: ThreadRecollection) -> None:
        """Be as the kit was of which `kept` was made."""
        self.transcript = kept.transcript
        self._shelf.recall(kept.skills)

    def needs_hands(self) -> bool:
        """Whether a worker may be needed in a turn; on self_hosted it may answer custom tools too."""
        agent = self.agent
        return bool(tool_definitions(agent) if self._claim.self_hosted else enabled_sandbox_tools(agent))

    async def request(self) -> ModelRequest:
        """The next model request."""
        model = self.agent["model"]
        can = self.can
        media = MediaLimits(self._context.images_kept, can.max_images, can.images, can.documents)
        if self.transcript.looks_back:
            self._looking_back[HISTORY] = HISTORY_TOOL
        system = system_prompt(
            self.agent,
            self_hosted=self._claim.self_hosted,
            uploads=self._claim.uploads,
            memory=self._claim.memory,
            skills=self._shelf.note(),
            others=self.voice.delegation.note(),
        )
        if system and can.prompt_cache:
            system[-1]["cache_control"] = {"type": "ephemeral"}
        if unanswered := self.transcript.unanswered():
            _log.error("the history was repaired for the model; no promise allows that", calls=unanswered)
        messages = self.transcript.encoded(media, marked=can.prompt_cache)
        tools = self._tools()
        return ModelRequest(
            model=model["id"],
            messages=await self._sources.resolved(messages, media),
            system=system,
            tools=tools,
            effort=model["effort"]["type"],
            speed=model["speed"],
            session_id=self._claim.session_id,
            asked=asked(model, system, tools, messages),
        )

    @property
    def can(self) -> ModelCapabilities:
        """What the agent's model can do."""
        return self._context.capabilities.of(self.agent["model"]["id"])

    async def summary_request(self, *, digest: bool) -> ModelRequest:
        """The model request that sums up the conversation so far."""
        return summary_request(await self.request(), self.can, digest=digest)

    def _tools(self) -> list[dict[str, Any]]:
        return [
            *tool_definitions(self.agent),
            *web_definitions(self._chain, self._web),
            *(dict(tool.definition) for tool in self.voice.own.values()),
            *self.voice.delegation.definitions(),
            *self.mcp.definitions(),
        ]
