"""Finds the rule of a request."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple

from tests.conformance.sdk.rules import (
    Rule,
    Rules,
    agents,
    as_it_is,
    deployments,
    environments,
    files,
    memory_stores,
    profiles,
    sessions,
    vaults,
)

NOWHERE: Final = "/_stainless_unknown_path"
"""Asked for by the TypeScript SDK's tests with any method, to see that options reach the request: 404."""


class Found(NamedTuple):
    """A route's template, the values of its parameters, and its rule."""

    template: str
    params: dict[str, str]
    rule: Rule


class Routes:
    """A table of rules. Where two templates fit, the one with fewer parameters wins."""

    def __init__(self, rules: Rules) -> None:
        by_parameters = sorted(rules.items(), key=lambda one: one[0].count("{"))
        self._rules = [(*name.split(" ", 1), rule) for name, rule in by_parameters]

    def find(self, method: str, path: str) -> Found | None:
        """The rule for a request, None if the tests were not expected to make it."""
        if path == NOWHERE:
            return Found(path, {}, as_it_is)
        for known, template, rule in self._rules:
            if known == method and (params := _match(template, path)) is not None:
                return Found(template, params, rule)
        return None


def _match(template: str, path: str) -> dict[str, str] | None:
    wanted, got = template.split("/"), path.split("/")
    if len(wanted) != len(got):
        return None
    params: dict[str, str] = {}
    for want, have in zip(wanted, got, strict=True):
        if want.startswith("{"):
            params[want[1:-1]] = have
        elif want != have:
            return None
    return params


def _merged(tables: Iterable[Mapping[str, Rule]]) -> dict[str, Rule]:
    return dict(chain.from_iterable(table.items() for table in tables))


ALL: Final[Rules] = _merged(
    family.RULES
    for family in (agents, environments, sessions, vaults, memory_stores, files, deployments, profiles)
)
