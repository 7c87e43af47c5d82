"""One comparison of a toolset with another: calls, the workspace before them, and what may differ."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Call = tuple[str, dict[str, Any]]

KIB = 1024
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


@dataclass(frozen=True)
class Link:
    """A symbolic link to make in the workspace."""

    target: str


@dataclass(frozen=True)
class Fifo:
    """A FIFO to make in the workspace."""


@dataclass(frozen=True)
class Case:
    """Calls made one after another. `{workdir}` in an input stands for the working directory.

    unordered: the order of lines says nothing. differs: why ours answers something else; `ours` then is a
    pattern for the text of our last result and whether it is an error.
    """

    name: str
    calls: list[Call]
    files: Mapping[str, bytes | Link | Fifo] = field(default_factory=dict[str, bytes | Link | Fifo])
    unordered: bool = False
    differs: str | None = None
    ours: tuple[str, bool] = ("", False)


def bash(command: str, **more: Any) -> Call:
    return "bash", {"command": command, **more}


def read(path: str, *lines: int) -> Call:
    return "read", {"file_path": path, **({"view_range": list(lines)} if lines else {})}


def write(path: str, content: str) -> Call:
    return "write", {"file_path": path, "content": content}


def edit(path: str, old: str, new: str, **more: Any) -> Call:
    return "edit", {"file_path": path, "old_string": old, "new_string": new, **more}


def glob(pattern: str, **more: Any) -> Call:
    return "glob", {"pattern": pattern, **more}


def grep(pattern: str, **more: Any) -> Call:
    return "grep", {"pattern": pattern, **more}


LINES = {"a.txt": b"one\ntwo\nthree\nfour\n"}
LONG = {"long.txt": b"".join(b"line %d\n" % number for number in range(40_000))}
