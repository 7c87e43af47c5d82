"""The search that grep uses where there is no ripgrep, run as `python3 ARCHIVE --grep`, and that of glob.

Reads one JSON object `{pattern, path, hidden}` from standard input and writes `{text}` or `{error}`. Limits
its own processor time: Python's regular expressions backtrack, and only a signal stops one. With `--glob` it
reads `{pattern, path, most}` and writes `{paths}`: a few links to their own folder make a pattern endless.
"""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from re import Pattern

#: Processor time of one search, in seconds.
CPU_SECONDS = 30
#: Characters of a search's result.
OUTPUT_LIMIT = 100 * 1024

_MAX_LINE_BYTES = 2000
_MAX_FILES = 50_000
_SNIFF_BYTES = 512
_NEVER_SEARCHED = (".git", "node_modules")


def main() -> None:
    """Answer the request on standard input."""
    _limit_processor_time()
    request = json.load(sys.stdin)
    try:
        expression = re.compile(request["pattern"])
    except re.error as error:
        json.dump({"error": f"grep: invalid regex: {error}"}, sys.stdout)
        return
    json.dump({"text": search(expression, request["path"], request["hidden"])}, sys.stdout)


def _limit_processor_time() -> None:
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    most = CPU_SECONDS + 1 if hard == resource.RLIM_INFINITY else min(CPU_SECONDS + 1, hard)
    # The first limit is a signal that tells what has happened; the second would be a plain kill.
    resource.setrlimit(resource.RLIMIT_CPU, (max(1, most - 1), most))


def main_glob() -> None:
    """Answer the request for paths on standard input."""
    _limit_processor_time()
    request = json.load(sys.stdin)
    try:
        found = [
            str(match) for match in islice(Path(request["path"]).glob(request["pattern"]), request["most"])
        ]
    except (ValueError, NotImplementedError, OSError) as error:
        json.dump({"error": f"glob: {error}"}, sys.stdout)
        return
    json.dump({"paths": found}, sys.stdout)


def search(expression: Pattern[str], path: str, hidden: str) -> str:
    """Return `file:line:text` for each matching line at or below `path`, or `no matches`."""
    hits: list[str] = []
    left = OUTPUT_LIMIT
    for file in _files(path, hidden):
        for hit in _hits(expression, file):
            left -= len(hit) + 1
            if left < 0:
                hits.append(f"[output truncated at {OUTPUT_LIMIT} bytes]")
                return "\n".join(hits)
            hits.append(hit)
    return "\n".join(hits) or "no matches"


def _files(path: str, hidden: str) -> Iterator[str]:
    """Yield regular files; links are never followed, so a search stays where it was told to look."""
    if os.path.isfile(path):
        yield path
        return
    seen = 0
    for directory, names, files in os.walk(path):
        names[:] = [
            name
            for name in names
            if name not in _NEVER_SEARCHED
            and os.path.join(directory, name) != hidden
            and not os.path.islink(os.path.join(directory, name))
        ]
        for name in files:
            file = os.path.join(directory, name)
            if os.path.islink(file) or not os.path.isfile(file):
                continue
            seen += 1
            if seen > _MAX_FILES:
                return
            yield file


def _hits(expression: Pattern[str], file: str) -> Iterator[str]:
    try:
        # Not blocking, and looked at once it is open: a pipe may have taken its place.
        with os.fdopen(
            os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb"
        ) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return
            if b"\0" in source.read(_SNIFF_BYTES):
                return  # binary
            source.seek(0)
            for number, raw in enumerate(source, 1):
                if len(raw) > _MAX_LINE_BYTES:
                    continue
                line = raw.decode(errors="replace").rstrip("\r\n")
                if expression.search(line):
                    yield f"{file}:{number}:{line}"
    except OSError:
        return  # unreadable files are no matches, as with grep -s
