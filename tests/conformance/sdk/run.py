"""`make conformance`: an official SDK's own API tests against a live server.

    python -m tests.conformance.sdk.run [--target URL] [--family NAME ...] [--sdk VERSION | --typescript DIR]

Without --target a private Corral is started. The tests are those of the Python SDK that requirements.lock
pins, of another version of it, or of a checkout of the TypeScript SDK's repository. The last line reads
`N passed, M failed, K excluded`; the exit status is 0 only if nothing failed. The key of a --target stands in
the environment variable CONFORMANCE_KEY.
"""

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

from tests.conformance.sdk import suite as suites
from tests.conformance.sdk import typescript_suite
from tests.conformance.sdk.families import FAMILIES, TYPESCRIPT_FAMILIES, chosen_files
from tests.conformance.sdk.keys import ApiKeyInstead, EnvironmentKeys, KeysByCommand
from tests.conformance.sdk.private_corral import NotStarted, private_corral
from tests.conformance.sdk.proxy import proxy_app
from tests.conformance.sdk.report import print_report
from tests.conformance.sdk.serving import served
from tests.conformance.sdk.suite import BUILD, Suite, SuiteFailure
from tests.conformance.sdk.typescript_suite import TypeScriptSuite
from tests.conformance.sdk.verdicts import (
    OLD_SDK_EXCLUSIONS,
    TYPESCRIPT_EXCLUSIONS,
    Exclusion,
    Test,
    Verdict,
    outgrown,
    read_exclusions,
    split,
)

AnySuite: TypeAlias = Suite | TypeScriptSuite

_KEY: Final = "CONFORMANCE_KEY"


def main() -> int:
    """Run as the arguments say; the exit status."""
    options = _options()
    try:
        suite, exclusions = _suite(options)
        files = FAMILIES if options.typescript is None else TYPESCRIPT_FAMILIES
        tests = suite.collect(chosen_files(options.family, files))
        chosen, verdicts, unused = split(tests, [] if options.all else exclusions)
        verdicts |= asyncio.run(_judge(suite, chosen, options))
    except (SuiteFailure, NotStarted) as error:
        print(f"make conformance: {error}", file=sys.stderr)
        return 2
    for test in chosen:
        verdicts.setdefault(test.node_id, Verdict("failed", "pytest did not report it"))
    print_report(tests, verdicts)
    if options.all:
        for exclusion, operation in outgrown(tests, verdicts, exclusions):
            print(f"exclusions.toml: all tests of {exclusion.file} {operation} pass by now")
    elif not options.family:
        _tell_unused(unused)
    outcomes = Counter(verdict.outcome for verdict in verdicts.values())
    print("{passed} passed, {failed} failed, {excluded} excluded".format_map(_Zero(outcomes)))
    return 1 if outcomes["failed"] else 0


def _suite(options: argparse.Namespace) -> "tuple[AnySuite, list[Exclusion]]":
    if options.typescript is not None:
        return typescript_suite.prepare(options.typescript), read_exclusions(TYPESCRIPT_EXCLUSIONS)
    locked = suites.locked_version()
    if options.sdk not in (None, locked):
        return suites.prepare(options.sdk), read_exclusions(OLD_SDK_EXCLUSIONS)
    return suites.prepare(locked), read_exclusions()


class _Zero(dict[str, int]):
    def __missing__(self, name: str) -> int:
        return 0


def _tell_unused(unused: Sequence[Exclusion]) -> None:
    for exclusion in unused:
        print(
            f"exclusions.toml: no test is in {exclusion.file} {sorted(exclusion.operations)}", file=sys.stderr
        )


async def _judge(suite: AnySuite, tests: Sequence[Test], options: argparse.Namespace) -> dict[str, Verdict]:
    if not tests:
        return {}
    async with _target(options) as (base_url, api_key, keys):
        async with proxy_app(base_url, api_key, keys, options.model) as app:
            async with served(app) as proxy_url:
                print(f"Running {len(tests)} tests against {base_url}", file=sys.stderr)
                return await suite.run(tests, proxy_url, jobs=options.jobs)


@asynccontextmanager
async def _target(options: argparse.Namespace) -> AsyncGenerator[tuple[str, str, EnvironmentKeys]]:
    if options.target is None:
        async with private_corral(BUILD / "corral.log") as place:
            yield place.base_url, place.api_key, place.keys
        return
    line: str | None = options.environment_key_command
    keys = KeysByCommand.of_line(line) if line else ApiKeyInstead()
    yield options.target.rstrip("/"), os.environ.get(_KEY, ""), keys


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The official SDK's own API tests against a live server.")
    parser.add_argument("--target", help=f"address of the server; its key is in ${_KEY} [a private Corral]")
    parser.add_argument(
        "--environment-key-command",
        help="prints a key for the workers of the environment {environment} [the API key is used]",
    )
    parser.add_argument("--model", default="claude-haiku-4-5", help="model of the agents that are made")
    parser.add_argument("--family", nargs="*", default=[], choices=sorted(FAMILIES), help="only these")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--sdk", help="version of the Python SDK [the one in requirements.lock]")
    which.add_argument(
        "--typescript", type=Path, help="a checkout of the TypeScript SDK's repository instead"
    )
    parser.add_argument("--jobs", type=int, default=2, help="test processes")
    parser.add_argument("--all", action="store_true", help="run what exclusions.toml names as well")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
