"""glob and grep. The figures are those of the toolset (contract, section 5.1)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from .arguments import Arguments
from .call import Call
from .failure import Cancelled, ToolFailure
from .grep_worker import CPU_SECONDS, OUTPUT_LIMIT
from .paths import Roots, canonical, within
from .processes import Descendants, first_to_go

_MAX_RESULTS = 200
_MAX_ENTRIES = 50_000
_WALL_SECONDS = 120


def glob(roots: Roots, arguments: Arguments, call: Call, descendants: Descendants) -> str:
    """List files that match a pattern, newest first. Runs in a process of its own, as grep does."""
    pattern = arguments.text("pattern")
    if Path(pattern).is_absolute():
        raise ToolFailure(
            "glob: absolute pattern not permitted; pass a relative pattern (and optionally path)"
        )
    if ".." in PurePosixPath(pattern).parts:
        raise ToolFailure("glob: '..' is not permitted in the pattern")
    root = _search_root("glob", roots, arguments)
    request = json.dumps({"pattern": pattern, "path": str(root), "most": _MAX_ENTRIES})
    answer = _answer("glob", _search("glob", call, descendants, _own_search("--glob"), request))
    matches = list(_visible([Path(found) for found in answer["paths"]], str(root), roots))
    matches.sort(key=_modified, reverse=True)
    return "\n".join(str(match) for match in matches[:_MAX_RESULTS]) or "no matches"


def _search_root(tool: str, roots: Roots, arguments: Arguments) -> Path:
    path = arguments.optional_text("path")
    return roots.resolve(tool, path) if path else Path(roots.workdir)


def _visible(found: list[Path], root: str, roots: Roots) -> Iterator[Path]:
    """Yield the matches whose real place is below `root`, leaving out Corral's own directory."""
    hidden = None if within(root, roots.private) else roots.private
    for match in found:
        if hidden and within(str(match), hidden):
            continue
        try:
            real = canonical(str(match))
        except OSError:
            continue  # a loop of links, or unreadable: it is no result
        if within(real, root):
            yield match


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def grep(roots: Roots, arguments: Arguments, call: Call, descendants: Descendants) -> str:
    """Search file contents for a regular expression, as `path:line:text`.

    Runs ripgrep if the sandbox has it, else the search in `grep_worker`; either in a process of its own, so
    that a pattern that takes for ever can be stopped and holds up nothing else.
    """
    pattern = arguments.text("pattern")
    search = _search_root("grep", roots, arguments)
    hidden = "" if within(str(search), roots.private) else roots.private
    ripgrep = _ripgrep(roots)
    if ripgrep:
        command = _ripgrep_command(ripgrep, pattern, str(search), hidden)
        return _ripgrep_result(_search("grep", call, descendants, command, ""))
    request = json.dumps({"pattern": pattern, "path": str(search), "hidden": hidden})
    return str(_answer("grep", _search("grep", call, descendants, _own_search("--grep"), request))["text"])


def _own_search(mode: str) -> list[str]:
    return [sys.executable, "-I", "-S", sys.argv[0], mode]


def _search(
    tool: str, call: Call, descendants: Descendants, command: list[str], request: str
) -> subprocess.CompletedProcess[bytes]:
    done = _run(tool, call, descendants, command, request)
    if done.returncode == -signal.SIGKILL:
        # A second try: resetting the shell kills every process of the sandbox, a search among them.
        done = _run(tool, call, descendants, command, request)
    return done


def _ripgrep(roots: Roots) -> str | None:
    # Never one that the agent could have put there: this program, not the shell, starts it.
    for entry in os.get_exec_path():
        found = shutil.which(os.path.join(entry, "rg")) if os.path.isabs(entry) else None
        if found and not roots.reachable(found):
            return found
    return None


def _ripgrep_command(ripgrep: str, pattern: str, search: str, hidden: str) -> list[str]:
    command = [ripgrep, "--no-config", "-n", "--no-heading"]
    if hidden:
        command += ["--glob", f"!{os.path.basename(hidden)}"]
    return [*command, "-e", pattern, "--", search]


def _run(
    tool: str, call: Call, descendants: Descendants, command: list[str], request: str
) -> subprocess.CompletedProcess[bytes]:
    pipe = subprocess.PIPE
    try:
        with descendants.still:
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise ToolFailure(f"{tool}: cannot start the search: {error.strerror}") from error
    first_to_go(process.pid)
    with process:
        with call.stoppable(process.kill):
            try:
                out, err = process.communicate(request.encode("utf-8", "replace"), timeout=_WALL_SECONDS)
            except subprocess.TimeoutExpired as error:  # it waits for something, such as a pipe
                process.kill()
                raise ToolFailure(f"{tool}: timed out after {_WALL_SECONDS}s") from error
    if call.withdrawn:
        raise Cancelled
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _ripgrep_result(done: subprocess.CompletedProcess[bytes]) -> str:
    if done.returncode == 1:
        return "no matches"
    if done.returncode != 0:
        raise ToolFailure(f"grep: rg failed: {done.stderr.decode(errors='replace')}")
    text = done.stdout.decode(errors="replace")
    if len(text) > OUTPUT_LIMIT:
        text = f"{text[:OUTPUT_LIMIT]}\n[output truncated at {OUTPUT_LIMIT} bytes]"
    return text


def _answer(tool: str, done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    if done.returncode == -signal.SIGXCPU:
        raise ToolFailure(f"{tool}: timed out after {CPU_SECONDS}s")
    if done.returncode != 0:
        detail = done.stderr.decode(errors="replace").strip()[-500:]
        raise ToolFailure(f"{tool}: the search ended with status {done.returncode}: {detail}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        raise ToolFailure(str(answer["error"]))
    return answer
