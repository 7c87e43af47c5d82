"""The tool calls of a coding agent: the toolset's own tools where the request offers them, bash where not."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Collection

from corral.testing.conversation import ToolResult
from corral.testing.steps import ToolCall

_SURVEY = "pwd && find . -maxdepth 4 -name 'test*.py' -not -path '*/.*' | sort | head -n 50"
# A change within the second of the last one and of equal length would otherwise run from stale bytecode.
_TEST = "PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -s tests -t . 2>&1"
_EDIT = """python3 - <<'PATCH'
import pathlib
path, old, new = pathlib.Path({path!r}), {old!r}, {new!r}
text = path.read_text()
assert text.count(old) == 1, f"found {{text.count(old)}} times"
path.write_text(text.replace(old, new))
print("edited", path)
PATCH"""


class Kind(enum.Enum):
    """What a tool call was for."""

    SURVEY = enum.auto()
    TEST = enum.auto()
    SEARCH = enum.auto()
    READ = enum.auto()
    EDIT = enum.auto()
    OTHER = enum.auto()


class Workbench:
    """Makes the calls, given the names of the tools that the request offers."""

    def __init__(self, tools: Collection[str]) -> None:
        self.tools = tools

    def survey(self, place: str) -> ToolCall:
        """Prints the working directory, then the test files below it."""
        command = _SURVEY if place == "." else f"cd {shlex.quote(place)} && {_SURVEY}"
        return ToolCall("bash", {"command": command})

    def test(self, root: str) -> ToolCall:
        """Runs the tests of the repository at `root`."""
        return ToolCall("bash", {"command": f"cd {shlex.quote(root)} && {_TEST}"})

    def search(self, pattern: str, root: str) -> ToolCall:
        """Searches for a regular expression; prints `file:line:text`."""
        if "grep" in self.tools:
            return ToolCall("grep", {"pattern": pattern, "path": root})
        return ToolCall(
            "bash", {"command": f"grep -rnE --include='*.py' {shlex.quote(pattern)} {shlex.quote(root)}"}
        )

    def read(self, path: str) -> ToolCall:
        """Reads a whole file."""
        if "read" in self.tools:
            return ToolCall("read", {"file_path": path})
        return ToolCall("bash", {"command": f"cat {shlex.quote(path)}"})

    def edit(self, path: str, old: str, new: str) -> ToolCall:
        """Replaces a text that stands once in the file."""
        if "edit" in self.tools:
            return ToolCall("edit", {"file_path": path, "old_string": old, "new_string": new})
        return ToolCall("bash", {"command": _EDIT.format(path=path, old=old, new=new)})


def kind_of(result: ToolResult) -> Kind:
    """What an answered call was for, read from the call itself."""
    command = str(result.input.get("command", "")) if result.name == "bash" else ""
    match result.name:
        case "grep":
            return Kind.SEARCH
        case "read":
            return Kind.READ
        case "edit":
            return Kind.EDIT
        case _ if command.endswith(_SURVEY):
            return Kind.SURVEY
        case _ if command.endswith(_TEST):
            return Kind.TEST
        case _ if command.startswith("grep "):
            return Kind.SEARCH
        case _ if command.startswith("cat "):
            return Kind.READ
        case _ if command.startswith("python3 - <<"):
            return Kind.EDIT
        case _:
            return Kind.OTHER
