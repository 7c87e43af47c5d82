"""Plays scripts: chooses the step for a request, counts its attempts, and keeps what outlives one request."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from corral.testing import directive
from corral.testing.conversation import Conversation
from corral.testing.holds import Holds
from corral.testing.prefix_cache import PrefixCache
from corral.testing.record import RequestRecord
from corral.testing.refusal import Refused
from corral.testing.reply import Reply, build
from corral.testing.scripts import BUILT_IN, converse, judge
from corral.testing.steps import ErrorPlan, Playable, Script, Step, choose, decode_script, fill

MAX_ISSUED = 50_000
"""Tool calls whose thinking is remembered."""


@dataclass(frozen=True)
class Performance:
    """What to answer: the step, the reply built from it, and the error to give instead on this attempt, if
    any.
    """

    step: Step
    reply: Reply
    error: ErrorPlan | None


class Player:
    """The state of one scripted model: scripts, rules, attempts, holds, prompt cache and record."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, cache_minimum_tokens: int = 1) -> None:
        self.holds = Holds()
        self.record = RequestRecord()
        self.cache = PrefixCache(clock, minimum_tokens=cache_minimum_tokens)
        self.context_tokens: int | None = None
        """The model's context: longer requests are refused. None is no limit."""
        self.issued: OrderedDict[str, list[str]] = OrderedDict()
        self._scripts: dict[str, Script | Playable] = dict(BUILT_IN)
        self._rules: list[Step] = []
        self._attempts: Counter[tuple[str, int]] = Counter()

    def reset(self) -> None:
        """Back to the start: built-in scripts only, no rules, nothing recorded or cached, holds hold."""
        self.holds.clear()
        self.record.clear()
        self.cache.clear()
        self.issued.clear()
        self.context_tokens = None
        self._scripts = dict(BUILT_IN)
        self._rules.clear()
        self._attempts.clear()

    @property
    def script_names(self) -> list[str]:
        """Names that a directive may use."""
        return sorted(self._scripts)

    def add_script(self, name: str, script: Playable | Script | list[Any] | dict[str, Any]) -> None:
        """Registers a script: a Python function, or JSON in any form that `decode_script` takes."""
        self._scripts[name] = decode_script(script) if isinstance(script, list | dict) else script

    def add_rule(self, rule: Any) -> None:
        """Adds a rule for every conversation, before scripts: a step with conditions. Raises `Refused` if it
        has none.
        """
        step = decode_script(rule, "rule").steps[0]
        if not step.is_choice:
            raise Refused("rule", "needs a condition: one of the if_ fields")
        self._rules.append(step)

    def perform(self, body: Mapping[str, Any]) -> Performance:
        """Chooses and builds the answer to a checked request. Raises `Refused` when its script cannot be
        played.
        """
        conversation = Conversation.of(body)
        step, key = self._choose(conversation)
        error = step.error
        if error is not None:
            self._attempts[key] += 1
            if self._attempts[key] > error.times:
                error = None
        if error is not None and error.at == "start":
            return Performance(step, Reply({"content": []}, torn=False), error)
        reply = build(step, body, self.cache.account(body))
        if error is None:
            self._remember(reply)
        return Performance(step, reply, error)

    def _choose(self, conversation: Conversation) -> tuple[Step, tuple[str, int]]:
        # What a judge is shown quotes others' directives.
        found = None if judge.is_judging(conversation) else directive.find(conversation)
        turn = found.turn if found else -1
        key = conversation.prefix_key(turn if found else len(conversation.turns) - 1)
        index = conversation.steps_after(turn)
        source = self._resolve(found.script) if found else converse.step
        rules = [*self._rules, *(source.rules if isinstance(source, Script) else [])]
        for at, rule in enumerate(rules):
            if rule.matches(conversation):
                return fill(choose(rule, conversation), conversation, index), (f"{key} rule {at}", index)
        if isinstance(source, Script):
            index += found.script.start if found else 0
            step = source.steps[index] if index < len(source.steps) else converse.step(conversation, turn)
        else:
            step = source(conversation, turn)
        step = choose(step, conversation)
        if _is_forced(conversation) and not _calls_what_there_is(step, conversation):
            step = converse.forced(conversation)
        return fill(step, conversation, index), (key, index)

    def _resolve(self, script: Script) -> Script | Playable:
        if script.name is None or script.steps:
            return script
        named = self._scripts.get(script.name)
        if named is None:
            raise Refused(
                "script", f"no script is named {script.name!r}; known are {', '.join(self.script_names)}"
            )
        return named

    def _remember(self, reply: Reply) -> None:
        proofs = reply.thinking_proofs
        if not proofs:
            return
        for call in reply.call_ids:
            self.issued[call] = proofs
        while len(self.issued) > MAX_ISSUED:
            self.issued.popitem(last=False)


def _is_forced(conversation: Conversation) -> bool:
    choice: dict[str, Any] = conversation.body.get("tool_choice") or {}
    return choice.get("type") in ("any", "tool")


def _calls_what_there_is(step: Step, conversation: Conversation) -> bool:
    """Whether a step may answer a request that forces a tool; blocks that are given are taken to be meant."""
    if step.content is not None:
        return True
    return bool(step.tools) and all(call.name in conversation.tool_names for call in step.tools)
