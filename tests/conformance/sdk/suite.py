"""The SDK's tests: fetched from its source distribution, set up in an environment of their own, and run.

Everything lands in ``build/conformance``, which git ignores; none of it is part of this project.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.conformance.sdk.verdicts import Test, Verdict

ROOT: Final = Path(__file__).parents[3]
BUILD: Final = ROOT / "build" / "conformance"

_PINNED: Final = re.compile(r"^anthropic==(\S+)", re.MULTILINE)
_FAMILIES: Final = "tests/api_resources/beta"
# What the tests import, besides the SDK with the extras that they try out.
_EXTRAS: Final = "aiohttp,webhooks"
_NEEDS: Final = (
    "dirty-equals",
    "http-snapshot[httpx]",
    "inline-snapshot",
    "pytest",
    "pytest-asyncio",
    "pytest-xdist",
    "respx",
    "time-machine",
)
# Rendering a traceback takes the SDK's code far longer than a test; the message in the report is enough.
_BRIEF: Final = ("-q", "--no-header", "--tb=line", "--show-capture=no", "-r", "N")
_NO_COLOURS: Final = {"NO_COLOR": "1", "PY_COLORS": "0"}


class SuiteFailure(Exception):
    """The suite could not be fetched, set up, or run."""


@dataclass(frozen=True)
class Suite:
    """The SDK's tests on disk. ``folder`` is the unpacked source distribution."""

    version: str
    folder: Path
    python: Path

    def collect(self, paths: Sequence[str]) -> list[Test]:
        """The tests in these files and folders, given from ``tests/api_resources/beta`` on."""
        # An older version may not have every family.
        there = [path for path in paths if (self.folder / _FAMILIES / path).exists()]
        arguments = [f"{_FAMILIES}/{path}" for path in there]
        done = self._pytest("--collect-only", "-q", "-n", "0", *arguments)
        if done.returncode != 0:
            raise SuiteFailure(f"the tests could not be collected:\n{done.stdout[-3000:]}")
        ids = [line.strip() for line in done.stdout.splitlines() if "::" in line]
        return [Test.of(node_id, _FAMILIES + "/") for node_id in ids]

    async def run(self, tests: Sequence[Test], base_url: str, *, jobs: int) -> dict[str, Verdict]:
        """Run the tests against the server at ``base_url``: a verdict for each, by its id."""
        chosen, report, log = (BUILD / name for name in ("chosen.txt", "report.xml", "pytest.log"))
        await asyncio.to_thread(chosen.write_text, "\n".join(test.node_id for test in tests) + "\n")
        await asyncio.to_thread(report.unlink, missing_ok=True)
        options = [*_BRIEF, "-n", str(jobs), f"--junitxml={report}"]
        with await asyncio.to_thread(log.open, "wb") as output:
            process = await asyncio.create_subprocess_exec(
                *self._command(*options, f"@{chosen}"),
                cwd=self.folder,
                env={**self._environment(), "TEST_API_BASE_URL": base_url},
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
            raise SuiteFailure(f"pytest ended with {process.returncode}; see {log}")
        return await asyncio.to_thread(_verdicts, report, tests)

    def _pytest(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return said_by(self._command(*arguments), self.folder, self._environment())

    def _command(self, *arguments: str) -> list[str]:
        # Their own options but for the number of processes and the length of tracebacks.
        own = ["-o", "addopts=", "-p", "no:cacheprovider", "--dist", "worksteal"]
        if (self.folder / "tests" / "_alias_httpx.py").exists():
            own += ["-p", "tests._alias_httpx"]
        return [str(self.python), "-m", "pytest", *own, *arguments]

    def _environment(self) -> dict[str, str]:
        return {**kept_environment(), **_NO_COLOURS}


def said_by(
    command: Sequence[str], folder: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """A command that was run in a folder, with all that it has said on either stream in ``stdout``."""
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def kept_environment() -> dict[str, str]:
    """The environment without what would tell an SDK of another server or key."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("ANTHROPIC_", "CORRAL_"))
    }


def locked_version() -> str:
    """The version of the SDK that requirements.lock pins."""
    found = _PINNED.search((ROOT / "requirements.lock").read_text())
    if found is None:
        raise SuiteFailure("requirements.lock pins no version of anthropic; run `make lock`")
    return found[1]


def prepare(version: str) -> Suite:
    """Fetch and set up what is missing; takes no time once it is there."""
    home = BUILD / version
    suite = Suite(version, home / f"anthropic-{version}", home / "venv" / "bin" / "python")
    ready = home / "ready"
    if ready.exists():
        return suite
    home.mkdir(parents=True, exist_ok=True)
    print(f"Fetching the source distribution of anthropic {version}", file=sys.stderr)
    _unpack(_fetch(version, home), home)
    print("Setting up an environment for its tests", file=sys.stderr)
    venv.create(home / "venv", with_pip=True, clear=True)
    _pip(
        suite.python,
        "install",
        "--constraint",
        str(_constraints(suite.folder, home)),
        f"anthropic[{_EXTRAS}]=={version}",
        *_NEEDS,
    )
    ready.touch()
    return suite


def _fetch(version: str, home: Path) -> Path:
    named = home / f"anthropic-{version}.tar.gz"
    if not named.exists():
        exact = ["--no-deps", "--no-binary", "anthropic", f"anthropic=={version}"]
        _pip(Path(sys.executable), "download", "--dest", str(home), *exact)
    return named


def _unpack(archive: Path, home: Path) -> None:
    shutil.rmtree(home / archive.name.removesuffix(".tar.gz"), ignore_errors=True)
    with tarfile.open(archive) as opened:
        for member in opened:
            target = (home / member.name).resolve()
            content = opened.extractfile(member) if member.isfile() else None
            # The distribution is files in one folder; whatever else an archive may hold is not unpacked.
            if content is not None and target.is_relative_to(home.resolve()):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())


def _constraints(folder: Path, home: Path) -> Path:
    """The versions that the SDK's own developers test with, without the line that names the SDK itself."""
    lines = (folder / "requirements-dev.lock").read_text().splitlines()
    kept = [line for line in lines if line and not line.lstrip().startswith(("#", "-e"))]
    written = home / "constraints.txt"
    written.write_text("\n".join(kept) + "\n")
    return written


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SuiteFailure(f"`{' '.join(command)}` failed:\n{done.stderr.strip()[-2000:]}")


def _verdicts(report: Path, tests: Sequence[Test]) -> dict[str, Verdict]:
    by_name = {test.reported_as: test.node_id for test in tests}
    # Written by the process above, on this machine.
    root = ElementTree.parse(report).getroot()
    found: dict[str, Verdict] = {}
    for case in root.iter("testcase"):
        node_id = by_name.get(f"{case.get('classname')}.{case.get('name')}")
        if node_id is not None:
            found[node_id] = _verdict(case)
    return found


def _verdict(case: ElementTree.Element) -> Verdict:
    for name in ("failure", "error"):
        if (child := case.find(name)) is not None:
            return Verdict("failed", child.get("message") or child.text or "")
    if (skipped := case.find("skipped")) is not None:
        return Verdict("excluded", f"the suite itself skips it: {skipped.get('message')}")
    return Verdict("passed", "")
