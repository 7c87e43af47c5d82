"""What the model is told of its skills, and how it finds those that it is not told of (contract section 17).

Up to `LISTED` skills are all in the prompt. Of more, the prompt holds the `PICKED` that fit best what the
user said before the model's first answer, and the rest is found by a tool. The list is decided by the
beginning of the log alone: it is the same in every request of a session, so that the provider's prompt cache
holds.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from corral.brain.own_tools import NONE, PREFIX, OwnAnswer, OwnTools, own_tool
from corral.brain.permission import Agent
from corral.brain.ranking import Ranking
from corral.session.events import Event
from corral.wire.skills import CLOUD_FOLDER, ENTRY_FILE, SessionSkill

LISTED: Final = 32
"""Up to so many skills are all listed."""
PICKED: Final = 16
"""So many are listed of more."""
FIND: Final = f"{PREFIX}find_skills"
FOUND: Final = 8
"""So many a search brings at most."""

_RELATIVE_FOLDER: Final = "skills"
_OPENING: Final = (
    "You have skills: folders with instructions, and often scripts, for tasks of one kind. Before a task "
    f"that one of them is made for, read its {ENTRY_FILE} with the read tool and follow it. What it refers "
    "to lies in the same folder. The folders are read-only."
)
_RELATIVE: Final = " Their paths start at your working directory."
_MORE: Final = (
    "There are {count} skills in all, of which these are listed. Look for others with {find}, by what the "
    "task is about, before you conclude that there is none for it."
)


class KeptShelf(msgspec.Struct, frozen=True):
    """What a shelf has taken from the log, as a snapshot keeps it."""

    skills: int
    """How many there are, so that it is taken for no other shelf's."""
    opening: list[str]
    begun: bool


class SkillShelf:
    """The skills of a thread's agent. Feed it the log's events in order."""

    def __init__(self, agent: Agent, skills: Sequence[SessionSkill], *, self_hosted: bool) -> None:
        own = {skill["version"] for skill in agent.get("skills", ())}
        self._skills = [skill for skill in skills if skill.version_id in own]
        self._folder = _RELATIVE_FOLDER if self_hosted else CLOUD_FOLDER
        self._opening: list[str] = []
        self._begun = False
        self._note: str | None = None
        self._many = len(self._skills) > LISTED

    async def prepare(self) -> None:
        """Make ready what takes some milliseconds with hundreds of skills, off the event loop."""
        if self._many:
            await asyncio.to_thread(lambda: self._ranking)

    @cached_property
    def _ranking(self) -> Ranking:
        # A name says more than one of many words.
        return Ranking([f"{skill.name} {skill.name} {skill.description}" for skill in self._skills])

    def add(self, event: Event) -> None:
        """Take in one event: what the user says before the model's first answer decides what is listed."""
        if self._begun or not self._many:
            return
        if event.type in ("user.message", "agent.thread_message_received"):
            content: list[dict[str, Any]] = event.body["content"]
            self._opening += [block["text"] for block in content if block["type"] == "text"]
            self._note = None
        elif event.type == "span.model_request_end":
            self._begun = (event.private or {}).get("outcome") == "completed"

    @property
    def count(self) -> int:
        """How many skills there are."""
        return len(self._skills)

    def kept(self) -> KeptShelf:
        """What it has taken from the log."""
        return KeptShelf(len(self._skills), list(self._opening), self._begun)

    def recall(self, kept: KeptShelf) -> None:
        """Be as the shelf was of which `kept` was made."""
        self._opening, self._begun, self._note = list(kept.opening), kept.begun, None

    @property
    def tools(self) -> OwnTools:
        """The tool that finds skills, where not all are listed."""
        if not self._many:
            return NONE
        tool = own_tool(
            FIND,
            f"Search your {len(self._skills)} skills by what they are for. Returns the {FOUND} that fit "
            "best, each with the path of its instructions.",
            self._find,
            query="What the task is about, in a few words.",
        )
        return {FIND: tool}

    def note(self) -> str:
        """The note for the system prompt; empty where there are no skills."""
        if not self._skills:
            return ""
        if self._note is None:
            self._note = self._written()
        return self._note

    def _written(self) -> str:
        listed = self._picked()
        opening = _OPENING + (_RELATIVE if self._folder == _RELATIVE_FOLDER else "")
        lines = [opening, "", *(self._line(skill) for skill in listed)]
        if len(listed) < len(self._skills):
            lines += ["", _MORE.format(count=len(self._skills), find=FIND)]
        return "\n".join(lines)

    def _picked(self) -> Sequence[SessionSkill]:
        if not self._many:
            return self._skills
        best = self._ranking.best("\n".join(self._opening), PICKED)
        rest = (index for index in range(len(self._skills)) if index not in best)
        return [self._skills[index] for index in (*best, *(next(rest) for _ in range(PICKED - len(best))))]

    def _find(self, given: Mapping[str, Any]) -> OwnAnswer:
        query = given.get("query")
        if not isinstance(query, str) or not query.strip():
            return OwnAnswer("query: must be a text that says what the task is about", is_error=True)
        found = self._ranking.best(query, FOUND)
        if not found:
            return OwnAnswer("No skill has any of these words. Try others, or go on without a skill.")
        return OwnAnswer("\n".join(self._line(self._skills[index]) for index in found))

    def _line(self, skill: SessionSkill) -> str:
        # In one line, whatever the description holds.
        about = " ".join(skill.description.split())
        return f"- {skill.name} ({self._folder}/{skill.name}/{ENTRY_FILE}): {about}"
