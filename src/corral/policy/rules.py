"""The operator's policy: what it says of a call. Pure.

The most severe rule that matches decides: deny before ask before allow, wherever they stand in the file. So a
rule that is added can only be overruled by a stricter one, and no order of the lines opens a hole. `default`
holds where no rule matches.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from corral.policy.facts import CallFacts
from corral.policy.patterns import Condition, Matcher

Effect = Literal["allow", "ask", "deny"]

SEVERITY: Final[Mapping[Effect, int]] = {"allow": 0, "ask": 1, "deny": 2}


class Who(msgspec.Struct, frozen=True):
    """Ids, names and metadata, all by glob; what is empty does not matter."""

    ids: tuple[Matcher, ...] = ()
    names: tuple[Matcher, ...] = ()
    metadata: tuple[tuple[str, tuple[Matcher, ...]], ...] = ()

    def fits(self, id: str | None, name: str) -> bool:
        """Whether an id or name is meant, where any is given."""
        if not self.ids and not self.names:
            return True
        return (id is not None and _any(self.ids, id)) or _any(self.names, name)

    def tagged(self, metadata: Mapping[str, str]) -> bool:
        """Whether every key of the metadata has a value that is meant."""
        return all(key in metadata and _any(globs, metadata[key]) for key, globs in self.metadata)


EVERYBODY: Final = Who()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule. All of its parts must match."""

    id: str
    effect: Effect
    line: int = 0
    """Where it begins in the file."""
    tools: tuple[Matcher, ...]
    servers: tuple[Matcher, ...] = ()
    """Hosts of MCP servers."""
    input: tuple[Condition, ...] = ()
    agents: Who = EVERYBODY
    environments: Who = EVERYBODY
    sessions: Who = EVERYBODY
    vaults: tuple[Matcher, ...] = ()
    over_ask: bool = False
    """Of `allow`: the call runs even where the agent's own policy would ask, or have it judged."""
    reason: str | None = None
    """What the agent is told of a denial."""

    def matches(self, call: CallFacts) -> bool:
        """Whether the rule is about this call. What cannot be looked at counts against the call."""
        around = call.around
        strict = self.effect != "allow"
        return (
            _any(self.tools, call.tool)
            and (not self.servers or (call.server_host != "" and _any(self.servers, call.server_host)))
            and self._of_agents(call)
            and self.agents.tagged(around.agent_metadata)
            and self.environments.fits(around.environment_id, around.environment_name)
            and self.environments.tagged(around.environment_metadata)
            and self.sessions.tagged(around.session_metadata)
            and (not self.vaults or any(_any(self.vaults, vault) for vault in around.vault_ids))
            and all(condition.holds(call.input, strict=strict) for condition in self.input)
        )

    def _of_agents(self, call: CallFacts) -> bool:
        # An agent must not get around a rule by having a helper of another name make the call, nor get what
        # only that helper may: strict rules look for one of them, permissive ones at all.
        fitting = [self.agents.fits(agent.id, agent.name) for agent in call.agents]
        if self.effect == "allow":
            return all(fitting)
        return any(fitting) or not fitting


class GateDecision(msgspec.Struct, frozen=True):
    """What the policy says of one call."""

    effect: Effect
    rule: str | None = None
    """The rule that decided; None for the default."""
    reason: str | None = None
    over_ask: bool = False


class Policy(msgspec.Struct, frozen=True):
    """A policy file, read."""

    rules: tuple[Rule, ...] = ()
    default: Effect = "allow"
    digest: str = ""
    """Which text it was: `sha256:` and the first 16 digits."""

    def decide(self, call: CallFacts) -> GateDecision:
        """The decision on a call: that of the most severe rule which matches, of equals the first."""
        found: Rule | None = None
        for rule in self.rules:
            if (found is None or _rank(rule) > _rank(found)) and rule.matches(call):
                found = rule
                if rule.effect == "deny":
                    break
        if found is None:
            return GateDecision(self.default)
        return GateDecision(found.effect, found.id, found.reason, found.over_ask)


def _rank(rule: Rule) -> int:
    # Among those that allow, one that says more than "no objection" is the one that was meant.
    return 2 * SEVERITY[rule.effect] + rule.over_ask


def _any(matchers: tuple[Matcher, ...], text: str) -> bool:
    encoded = text.encode("utf-8", "replace")
    return any(matcher.search(encoded) is not None for matcher in matchers)
