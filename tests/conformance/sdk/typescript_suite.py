"""The TypeScript SDK's API tests, from a checkout of its repository: its npm package does not contain them.

The SDK itself, in the version of the checkout, and vitest come from the package registry, into
``build/conformance``. The checkout is only read.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.conformance.sdk.suite import BUILD, SuiteFailure, kept_environment, said_by
from tests.conformance.sdk.verdicts import Test, Verdict

_FAMILIES: Final = "tests/api-resources/beta"
_VITEST: Final = "3.2.4"
# The tests were written for jest, whose globals vitest offers too. They share one server, and each makes what
# it needs; a test file after the other keeps the order of the report.
_CONFIG: Final = """\
export default {
  test: {
    globals: true,
    include: ['tests/api-resources/beta/**/*.test.ts'],
    reporters: ['json'],
    outputFile: 'report.json',
    testTimeout: 60000,
    cache: false,
  },
};
"""


@dataclass(frozen=True)
class TypeScriptSuite:
    """The SDK's tests on disk, in a folder of their own."""

    version: str
    folder: Path

    def collect(self, paths: Sequence[str]) -> list[Test]:
        """The tests in these files and folders, given from ``tests/api-resources/beta`` on."""
        found = self.folder / "collected.json"
        done = said_by(
            self._command("list", f"--json={found}", *(f"{_FAMILIES}/{path}" for path in paths)),
            self.folder,
            _environment(),
        )
        if done.returncode != 0:
            raise SuiteFailure(f"the tests could not be collected:\n{done.stdout[-3000:]}")
        listed: list[dict[str, str]] = json.loads(found.read_text())
        return [self._test(one["file"], one["name"]) for one in listed]

    async def run(self, tests: Sequence[Test], base_url: str, *, jobs: int) -> dict[str, Verdict]:
        """Run the files of these tests against the server at ``base_url``: a verdict for each, by its id."""
        report, log = self.folder / "report.json", BUILD / "vitest.log"
        await asyncio.to_thread(report.unlink, missing_ok=True)
        files = sorted({test.node_id.partition(" > ")[0] for test in tests})
        with await asyncio.to_thread(log.open, "wb") as output:
            process = await asyncio.create_subprocess_exec(
                *self._command("run", f"--maxWorkers={jobs}", "--minWorkers=1", *files),
                cwd=self.folder,
                env={**_environment(), "TEST_API_BASE_URL": base_url},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
            )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if not report.exists():
            raise SuiteFailure(f"vitest ended with {process.returncode}; see {log}")
        wanted = {test.node_id for test in tests}
        found = self._verdicts(json.loads(await asyncio.to_thread(report.read_text)))
        return {node_id: verdict for node_id, verdict in found.items() if node_id in wanted}

    def _verdicts(self, report: dict[str, Any]) -> dict[str, Verdict]:
        found: dict[str, Verdict] = {}
        for file in report["testResults"]:
            for case in file["assertionResults"]:
                name = " > ".join([*case["ancestorTitles"], case["title"]])
                found[self._test(file["name"], name).node_id] = _verdict(case)
        return found

    def _test(self, file: str, name: str) -> Test:
        path = str(Path(file).relative_to(self.folder))
        operation = name.rpartition(" > ")[2]
        method, _, rest = operation.partition(": ")
        return Test(f"{path} > {name}", path.removeprefix(_FAMILIES + "/"), method, local="unknown" in rest)

    def _command(self, *arguments: str) -> list[str]:
        return [str(self.folder / "node_modules" / ".bin" / "vitest"), *arguments]


def prepare(source: Path) -> TypeScriptSuite:
    """Copy the tests out of a checkout and install what they need; takes no time once it is there.

    Raises:
        SuiteFailure: this is no checkout of the SDK, or npm cannot install what is wanted.
    """
    try:
        version = str(json.loads((source / "package.json").read_text())["version"])
    except (OSError, ValueError, KeyError) as error:
        raise SuiteFailure(f"{source} is no checkout of the TypeScript SDK's repository: {error}") from None
    if not (source / _FAMILIES).is_dir():
        raise SuiteFailure(
            f"{source} has no {_FAMILIES}: is it a checkout of the repository, with its files?"
        )
    suite = TypeScriptSuite(version, BUILD / f"typescript-{version}")
    shutil.rmtree(suite.folder / "tests", ignore_errors=True)
    shutil.copytree(source / _FAMILIES, suite.folder / _FAMILIES)
    wanted = {
        "name": "corral-typescript-conformance",
        "private": True,
        "type": "module",
        "dependencies": {"@anthropic-ai/sdk": version, "vitest": _VITEST},
    }
    _install(suite.folder, json.dumps(wanted, indent=2))
    (suite.folder / "vitest.config.js").write_text(_CONFIG)
    return suite


def _install(folder: Path, package: str) -> None:
    kept = folder / "package.json"
    if (folder / "installed").exists() and kept.is_file() and kept.read_text() == package:
        return
    print("Installing the TypeScript SDK and vitest", file=sys.stderr)
    kept.write_text(package)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SuiteFailure(f"npm could not install what the tests need:\n{done.stderr[-2000:]}")
    (folder / "installed").touch()


def _environment() -> dict[str, str]:
    return {**kept_environment(), "NO_COLOR": "1"}


def _verdict(case: dict[str, Any]) -> Verdict:
    match case["status"]:
        case "passed":
            return Verdict("passed", "")
        case "skipped" | "pending" | "todo" | "disabled":
            return Verdict("excluded", "the suite itself skips it")
        case _:
            messages: list[str] = case.get("failureMessages") or ["no message"]
            return Verdict("failed", messages[0].partition("\n    at ")[0])
