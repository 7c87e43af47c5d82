"""Reads a policy file, and finds everything that is wrong with it at once, each problem with its line."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import yaml

from corral.policy.patterns import (
    ANYWHERE,
    Condition,
    Matcher,
    PatternError,
    Test,
    expression,
    field_path,
    glob,
)
from corral.policy.rules import EVERYBODY, Effect, Policy, Rule, Who

MOST_RULES: Final = 500
LARGEST: Final = 1_000_000
"""Bytes of a policy file."""
_EFFECTS: Final = ("allow", "ask", "deny")
_VERSION: Final = 1
_TOP: Final = ("version", "default", "rules")
_RULE: Final = (
    *("id", "effect", "tools", "servers", "input", "agents", "environments", "sessions", "vaults"),
    *("over_ask", "reason"),
)
_TESTS: Final[dict[str, Test]] = {
    "matches": "matches",
    "glob": "glob",
    "path": "path",
    "host": "host",
    "equals": "equals",
    "present": "present",
}
_LONGEST_ID: Final = 64
_LONGEST_REASON: Final = 500


class PolicyProblem(NamedTuple):
    """One thing that is wrong: its line, what it is about (`rules[2].input.command`), and what is wrong."""

    line: int
    place: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.place}: {self.message}" if self.place else self.message


class PolicyError(Exception):
    """A policy file cannot be used; `problems` has everything that is wrong with it."""

    def __init__(self, name: str, problems: list[PolicyProblem]) -> None:
        self.problems = problems
        super().__init__("\n".join([f"{name} cannot be used:", *(f"  {problem}" for problem in problems)]))


def load_policy(path: Path) -> Policy:
    """The policy in a file. Blocking. Raises `PolicyError`."""
    try:
        content = path.read_bytes()
        if len(content) > LARGEST:
            raise PolicyError(str(path), [PolicyProblem(0, "", f"is larger than {LARGEST} bytes")])
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(str(path), [PolicyProblem(0, "", f"cannot be read: {error}")]) from error
    return parse_policy(text, str(path))


def parse_policy(text: str, name: str = "policy") -> Policy:
    """The policy that a YAML text describes. Raises `PolicyError`."""
    try:
        root: Any = cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise PolicyError(name, [PolicyProblem(0, "", f"is not valid YAML: {said}")]) from error
    reader = _Reader()
    policy = reader.policy(root, text)
    if reader.problems:
        raise PolicyError(name, sorted(reader.problems))
    return policy


class _Reader:
    """Walks the file's nodes, which know their lines, and notes what is wrong."""

    def __init__(self) -> None:
        self.problems: list[PolicyProblem] = []

    def policy(self, root: Any, text: str) -> Policy:
        if root is None:
            self.problems.append(PolicyProblem(1, "file", "is empty; it must say `version: 1`"))
            return Policy()
        fields = self._fields(root, "", _TOP)
        if self._scalar(fields.get("version"), "version") != _VERSION:
            self._wrong(fields.get("version", root), "version", f"must be {_VERSION}")
        default = self._choice(fields.get("default"), "default", _EFFECTS) or "allow"
        rules: list[Rule] = []
        for n, node in enumerate(self._items(fields.get("rules"), "rules")):
            rules.append(self._rule(node, f"rules[{n}]"))
        if len(rules) > MOST_RULES:
            self._wrong(fields["rules"], "rules", f"are more than {MOST_RULES}")
        seen: dict[str, int] = {}
        for n, rule in enumerate(rules):
            if rule.id and rule.id in seen:
                place = f"rules[{n}].id"
                self.problems.append(PolicyProblem(rule.line, place, f"{rule.id!r} occurs twice"))
            seen[rule.id] = n
        digest = f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        return Policy(tuple(rules), cast("Effect", default), digest)

    def _rule(self, node: Any, place: str) -> Rule:
        fields = self._fields(node, place, _RULE)
        if "id" not in fields:
            self._wrong(node, f"{place}.id", "is missing: the audit trail names the rule by it")
        if "effect" not in fields:
            self._wrong(node, f"{place}.effect", "is missing: must be one of allow, ask, deny")
        effect = self._choice(fields.get("effect"), f"{place}.effect", _EFFECTS) or "deny"
        over_ask = self._truth(fields.get("over_ask"), f"{place}.over_ask")
        if over_ask and effect != "allow":
            self._wrong(fields["over_ask"], f"{place}.over_ask", "belongs to effect: allow")
        reason = self._text(fields.get("reason"), f"{place}.reason", _LONGEST_REASON)
        if reason is not None and effect == "allow":
            self._wrong(
                fields["reason"], f"{place}.reason", "is for denials and asks; nobody is told it here"
            )
        if "tools" not in fields:
            self._wrong(node, f"{place}.tools", 'is missing; "**" is every tool')
        tools = self._globs(fields.get("tools"), f"{place}.tools", within_segments=True)
        self._tools_exist(fields.get("tools"), f"{place}.tools", effect)
        return Rule(
            id=self._text(fields.get("id"), f"{place}.id", _LONGEST_ID) or "",
            effect=cast("Effect", effect),
            line=_line(node),
            tools=tools,
            servers=self._matchers(fields.get("servers"), f"{place}.servers", _host_glob),
            input=self._conditions(fields.get("input"), f"{place}.input"),
            agents=self._who(fields.get("agents"), f"{place}.agents"),
            environments=self._who(fields.get("environments"), f"{place}.environments"),
            sessions=self._who(fields.get("sessions"), f"{place}.sessions", ("metadata",)),
            vaults=self._globs(fields.get("vaults"), f"{place}.vaults"),
            over_ask=over_ask,
            reason=reason,
        )

    def _tools_exist(self, node: Any, place: str, effect: str) -> None:
        """Point out names that no tool can have, which are misspelt more often than meant."""
        for one in _each(node):
            name = str(one.value)
            first = name.partition("/")[0]
            if "/" in name and first not in ("mcp", "custom", "corral", "*", "**"):
                self._wrong(one, place, f"{name!r}: before the / must be mcp, custom or corral")
            if effect == "ask" and name.startswith("corral/"):
                self._wrong(one, place, f"{name!r} cannot be held for a confirmation; allow or deny it")

    def _who(self, node: Any, place: str, allowed: tuple[str, ...] = ("ids", "names", "metadata")) -> Who:
        if node is None:
            return EVERYBODY
        fields = self._fields(node, place, allowed)
        if not fields:
            self._wrong(node, place, f"must have one of {', '.join(allowed)}")
        metadata: list[tuple[str, tuple[Matcher, ...]]] = []
        for key, value in self._pairs(fields.get("metadata"), f"{place}.metadata"):
            metadata.append((key, self._globs(value, f"{place}.metadata.{key}")))
        return Who(
            self._globs(fields.get("ids"), f"{place}.ids"),
            self._globs(fields.get("names"), f"{place}.names"),
            tuple(metadata),
        )

    def _conditions(self, node: Any, place: str) -> tuple[Condition, ...]:
        conditions: list[Condition] = []
        for field, value in self._pairs(node, place):
            where = f"{place}.{field}"
            if not isinstance(value, yaml.MappingNode):
                conditions.append(self._condition(field, "glob", value, where))
                continue
            tests = list(self._pairs(value, where))
            if not tests:
                self._wrong(value, where, f"must say what the value is like: {', '.join(_TESTS)}")
            conditions += [self._condition(field, test, wanted, where) for test, wanted in tests]
        return tuple(conditions)

    def _condition(self, field: str, test: str, node: Any, place: str) -> Condition:
        negated = test.startswith("not_")
        kind = _TESTS.get(test.removeprefix("not_"))
        if kind is None or (kind == "present" and negated):
            known = ", ".join([*_TESTS, "and not_ before each but present"])
            self._wrong(node, place, f"{test!r} is no test; there are {known}")
            return Condition((field,), "present")
        path = field_path(field)
        if path == (ANYWHERE,) and kind not in ("matches", "glob"):
            self._wrong(node, place, f"{ANYWHERE} takes matches, glob, not_matches and not_glob")
        if kind == "present":
            return Condition(path, kind, negated=not self._truth(node, place))
        if kind == "equals":
            wanted = tuple(self._scalar(one, place) for one in _each(node))
            return Condition(path, kind, negated, wanted=wanted)
        make: Callable[[str], Matcher] = glob
        if kind == "matches":
            make = expression
        elif kind == "path":
            make = _path_glob
        elif kind == "host":
            make = _host_glob
        return Condition(path, kind, negated, self._matchers(node, place, make))

    def _globs(self, node: Any, place: str, *, within_segments: bool = False) -> tuple[Matcher, ...]:
        return self._matchers(node, place, lambda one: glob(one, within_segments=within_segments))

    def _matchers(self, node: Any, place: str, make: Callable[[str], Matcher]) -> tuple[Matcher, ...]:
        matchers: list[Matcher] = []
        if isinstance(node, yaml.SequenceNode) and not node.value:
            self._wrong(node, place, "is an empty list, which nothing matches")
        for one in _each(node):
            pattern = self._text(one, place)
            if pattern is None:
                continue
            try:
                matchers.append(make(pattern))
            except PatternError as error:
                self._wrong(one, place, f"{pattern!r} {error}")
        return tuple(matchers)

    def _fields(self, node: Any, place: str, allowed: tuple[str, ...]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in self._pairs(node, place):
            where = f"{place}.{key}" if place else key
            if key not in allowed:
                self._wrong(value, where, f"no such field; there are {', '.join(allowed)}")
            else:
                fields[key] = value
        return fields

    def _pairs(self, node: Any, place: str) -> Iterator[tuple[str, Any]]:
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, place or "file", "must be a mapping")
            return
        seen: set[str] = set()
        for key_node, value in cast("list[tuple[Any, Any]]", node.value):
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else ""
            if not key:
                self._wrong(key_node, place or "file", "has a key that is no text")
            elif key in seen:
                self._wrong(key_node, f"{place}.{key}" if place else key, "occurs twice")
            else:
                seen.add(key)
                yield key, value

    def _items(self, node: Any, place: str) -> list[Any]:
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            self._wrong(node, place, "must be a list")
            return []
        return cast("list[Any]", node.value)

    def _text(self, node: Any, place: str, longest: int | None = None) -> str | None:
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode) or not str(node.value):
            self._wrong(node, place, "must be a text")
            return None
        text = str(node.value)
        if longest is not None and len(text) > longest:
            self._wrong(node, place, f"is longer than {longest} characters")
        return text

    def _choice(self, node: Any, place: str, choices: tuple[str, ...]) -> str | None:
        text = self._text(node, place)
        if text is not None and text not in choices:
            self._wrong(node, place, f"must be one of {', '.join(choices)}, not {text!r}")
            return None
        return text

    def _truth(self, node: Any, place: str) -> bool:
        value = False if node is None else self._scalar(node, place)
        if not isinstance(value, bool):
            self._wrong(node, place, "must be true or false")
            return False
        return value

    def _scalar(self, node: Any, place: str) -> Any:
        """A scalar as YAML takes it: a text, a number, a truth value, null."""
        if node is None:
            return None
        if not isinstance(node, yaml.ScalarNode):
            self._wrong(node, place, "must be a single value")
            return None
        try:
            return cast("Any", yaml.SafeLoader("")).construct_object(node)
        except (ValueError, yaml.YAMLError):
            self._wrong(node, place, f"{node.value!r} is no value that YAML knows")
            return None

    def _wrong(self, node: Any, place: str, message: str) -> None:
        self.problems.append(PolicyProblem(_line(node), place, message))


def _path_glob(pattern: str) -> Matcher:
    return glob(pattern, within_segments=True)


def _host_glob(pattern: str) -> Matcher:
    return glob(pattern.lower())


def _each(node: Any) -> list[Any]:
    """A value, or each of a list of them."""
    if node is None:
        return []
    return cast("list[Any]", node.value) if isinstance(node, yaml.SequenceNode) else [node]


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1
