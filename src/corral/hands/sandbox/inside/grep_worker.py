"""The search that grep uses where there is no ripgrep, run as `python3 ARCHIVE --grep`.

Reads one JSON object `{pattern, path, hidden}` from standard input and writes `{text}` or `{error}`. Limits
its own processor time: Python's regular expressions backtrack, and only a signal stops one.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from collections.abc import Iterator
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
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    request = json.load(sys.stdin)
    try:
        expression = re.compile(request["pattern"])
    except re.error as error:
        json.dump({"error": f"grep: invalid regex: {error}"}, sys.stdout)
        return
    json.dump({"text": search(expression, request["path"], request["hidden"])}, sys.stdout)


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
        with open(file, "rb") as source:
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
