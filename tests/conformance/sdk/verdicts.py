"""Tests, what came of each, and the exclusions that stand in exclusions.toml."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

FILE: Final = Path(__file__).with_name("exclusions.toml")
OLD_SDK_EXCLUSIONS: Final = FILE.with_name("exclusions-old-sdk.toml")
TYPESCRIPT_EXCLUSIONS: Final = FILE.with_name("exclusions-typescript.toml")

_KINDS: Final = re.compile(r"^test_(method|raw_response|streaming_response|path_params)_")
_LOCAL: Final = "path_params"


@dataclass(frozen=True)
class Test:
    """One test of the suite.

    ``file`` is its file from ``tests/api_resources/beta`` on, ``operation`` the method that it calls, e.g.
    ``list_with_all_params``, and ``local`` tells that it never asks a server.
    """

    __test__ = False

    node_id: str
    file: str
    operation: str
    local: bool

    @classmethod
    def of(cls, node_id: str, root: str) -> Self:
        """The test with this pytest id."""
        path, *_, name = node_id.split("::")
        function = name.partition("[")[0]
        kind = _KINDS.match(function)
        operation = _KINDS.sub("", function) if kind else function.removeprefix("test_")
        return cls(node_id, path.removeprefix(root), operation, kind is not None and kind[1] == _LOCAL)

    @property
    def family(self) -> str:
        """The family it belongs to: its file without folders' ``test_``."""
        return self.file.removesuffix(".py").removesuffix(".test.ts").replace("test_", "")

    @property
    def reported_as(self) -> str:
        """The test's name in pytest's XML report."""
        path, *classes, name = self.node_id.split("::")
        return ".".join([path.removesuffix(".py").replace("/", "."), *classes, name])


@dataclass(frozen=True)
class Verdict:
    """What came of a test, and why if it did not pass."""

    outcome: Literal["passed", "failed", "excluded"]
    why: str


@dataclass(frozen=True)
class Exclusion:
    """Tests that do not count, and the reason: a whole file, or some operations of it."""

    file: str
    operations: frozenset[str]
    reason: str

    def covers(self, test: Test) -> bool:
        """Whether it excludes this test. Of single operations, tests that ask no server still run."""
        if test.file != self.file:
            return False
        return not self.operations or (test.operation in self.operations and not test.local)


def read_exclusions(path: Path = FILE) -> list[Exclusion]:
    """The exclusions of a file.

    Raises:
        ValueError: one has no reason, or a key that is not known.
    """
    told: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("exclude", [])
    return [exclusion for entry in told for exclusion in _read(entry)]


def _read(entry: dict[str, Any]) -> list[Exclusion]:
    unknown = entry.keys() - {"files", "operations", "reason"}
    if unknown or not entry.get("files") or not str(entry.get("reason", "")).strip():
        raise ValueError(
            f"{FILE.name}: needs files and a reason, and nothing but operations besides: {entry}"
        )
    operations = frozenset(entry.get("operations", ()))
    return [Exclusion(file, operations, entry["reason"]) for file in entry["files"]]


def split(
    tests: Sequence[Test], exclusions: Sequence[Exclusion]
) -> tuple[list[Test], dict[str, Verdict], list[Exclusion]]:
    """The tests to run, the verdicts of those that are excluded, and the exclusions that cover nothing."""
    excluded: dict[str, Verdict] = {}
    used: set[Exclusion] = set()
    for test in tests:
        for exclusion in exclusions:
            if exclusion.covers(test):
                excluded[test.node_id] = Verdict("excluded", exclusion.reason)
                used.add(exclusion)
                break
    chosen = [test for test in tests if test.node_id not in excluded]
    return chosen, excluded, [exclusion for exclusion in exclusions if exclusion not in used]


def outgrown(
    tests: Sequence[Test], verdicts: Mapping[str, Verdict], exclusions: Sequence[Exclusion]
) -> list[tuple[Exclusion, str]]:
    """Operations that an exclusion still names although every test of theirs that was run has passed."""
    passed: dict[tuple[Exclusion, str], bool] = {}
    for test in tests:
        for exclusion in exclusions:
            if exclusion.covers(test) and not test.local:
                key = exclusion, test.operation
                passed[key] = passed.get(key, True) and verdicts[test.node_id].outcome == "passed"
    return [key for key, all_passed in passed.items() if all_passed]
