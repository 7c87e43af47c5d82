"""Our toolset against the official one, call by call.

Each case runs through the toolset of the official Python SDK, in this process, and through ours, in a
bubblewrap sandbox, on equal workspaces. Content and `is_error` must be the same; where they are meant to
differ, the case says why and what ours answers.
"""

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools import ToolError
from anthropic.lib.tools.agent_toolset import AgentToolContext, beta_agent_toolset_20260401

from tests.unit.hands.sandbox.given import hands

Call = tuple[str, dict[str, Any]]
Result = tuple[list[dict[str, Any]], bool]

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
TREE: Mapping[str, bytes | Link | Fifo] = {
    "src/a.py": b"import os\nprint('needle')\n",
    "src/deep/b.py": b"# Needle\nneedle = 1\n",
    "src/c.txt": b"nothing\r\nneedle at the end\r\n",
    ".hidden": b"needle\n",
    ".git/config": b"needle\n",
    "node_modules/x.js": b"needle\n",
    "binary.bin": b"\0needle\n",
    "latin.txt": "needle caf\xe9\n".encode("latin-1"),
    "wide.txt": b"needle" + b"x" * 3000 + b"\nneedle\n",
    "link.py": Link("src/a.py"),
    "out": Link("/etc"),
}

BASH = [
    Case("echo", [bash("echo hello")]),
    Case("unicode", [bash("echo 'héllo 안녕 🐎'")]),
    Case("stderr_in_order", [bash("echo 1; echo 2 >&2; echo 3")]),
    Case("no_output", [bash("true")]),
    Case("failure_without_output", [bash("false")]),
    Case("failure_with_output", [bash("echo before; exit_with() { return 7; }; exit_with")]),
    Case("unknown_command", [bash("no_such_command_here")]),
    Case("directory_persists", [bash("mkdir -p d && cd d"), bash("basename $PWD")]),
    Case("variable_persists", [bash("export A=1 B='x y'; c=3"), bash('echo "$A $B $c"')]),
    Case("function_persists", [bash("greet() { echo hi $1; }"), bash("greet you")]),
    Case("status_does_not_persist", [bash("false"), bash("echo $?")]),
    Case("several_lines", [bash("for i in 1 2 3\ndo\n  echo $i\ndone")]),
    Case("here_document", [bash("cat <<'END'\na 'quoted' $line\nEND")]),
    Case("quotes", [bash("""echo 'it'"'"'s' "a \\"b\\" \\$c" """)]),
    Case("comment_at_the_end", [bash("echo hi # a comment")]),
    Case("backslash_at_the_end_of_a_line", [bash("echo a \\\n b")]),
    Case("newlines_around", [bash("printf '\\n\\nmiddle\\n\\n\\n'")]),
    Case("spaces_stay", [bash("printf '  a  \\n  b  '")]),
    Case("no_newline_at_the_end", [bash("printf abc")]),
    Case("colours_are_stripped", [bash("printf '\\033[1;31mred\\033[0m \\033[2Kx'")]),
    Case("carriage_returns_stay", [bash("printf 'a\\rb\\r\\nc'")]),
    Case("nul_in_output", [bash("printf 'a\\0b'")]),
    Case("invalid_utf8_in_output", [bash("printf 'a\\377b\\303'")]),
    Case("standard_input_is_empty", [bash("cat; read x; echo got:$x")]),
    Case("pipeline", [bash("printf 'b\\na\\n' | sort | tr a-z A-Z")]),
    Case("subshell_exit", [bash("(exit 4); echo $?")]),
    Case("child_in_background_holds_output", [bash("sleep 5 & echo started"), bash("echo next")]),
    Case("late_output_of_background", [bash("(sleep 0.1; echo late) & echo now"), bash("wait; echo done")]),
    Case("just_below_the_limit", [bash("head -c 99000 /dev/zero | tr '\\0' x")]),
    Case("timeout", [bash("sleep 5", timeout_ms=200)]),
    Case("timeout_of_zero_is_the_default", [bash("sleep 0.1; echo done", timeout_ms=0)]),
    Case(
        "restart",
        [bash("cd /; export A=1"), ("bash", {"restart": True}), bash("basename $PWD >f; echo [$A]")],
    ),
    Case("restart_first", [("bash", {"restart": True}), bash("echo up")]),
    Case("no_command", [("bash", {})]),
    Case("empty_command", [("bash", {"command": ""})]),
    Case("directory_change_fails", [bash("cd nowhere")]),
    Case("nul_in_command", [bash("echo a\0b")]),
    Case("file_made_by_bash", [bash("echo from bash > f.txt"), read("f.txt")]),
    Case(
        "truncated",
        [bash("seq 1 30000")],
        differs="the whole output is in a file that the result names, and the last 100 KiB are all output",
        ours=(
            r"\A\[output truncated\]\n\[all of it is in /workspace/\.corral/outputs/bash-\w+\.txt\]\n",
            False,
        ),
    ),
    Case(
        "timeout_with_output",
        [bash("echo working; sleep 5", timeout_ms=200)],
        differs="what the command had said helps the model",
        ours=(r"\Abash: bash command timed out after 0\.2s\nworking\Z", True),
    ),
    Case(
        "call_after_timeout",
        [bash("cd /; sleep 5", timeout_ms=200), bash("pwd")],
        differs="a new shell starts by itself",
        ours=(r"\A/workspace\Z", False),
    ),
    Case(
        "shell_exits",
        [bash("echo bye; exit 3")],
        differs="says that the shell is gone, and its status",
        ours=(r"\Abye\n\[the shell exited with status 3; the next command starts a new one\]\Z", True),
    ),
    Case(
        "call_after_exit",
        [bash("exit 0"), bash("echo again")],
        differs="a new shell starts by itself",
        ours=(r"\Aagain\Z", False),
    ),
    Case(
        "syntax_error",
        [bash("A=kept"), bash("echo )"), bash("echo $A")],
        differs="a syntax error does not end the shell",
        ours=(r"\Akept\Z", False),
    ),
    Case(
        "open_quote",
        [bash("echo 'open", timeout_ms=1500)],
        differs="an open quote is an error at once, not a wait for the timeout",
        ours=(r"unexpected EOF while looking for matching `''\Z", True),
    ),
    Case(
        "lone_surrogate_in_command",
        [bash("echo a\ud800b")],
        differs="a lone surrogate becomes U+FFFD; there it cannot be encoded",
        ours=("\\Aa\ufffdb\\Z", False),
    ),
    Case(
        "wrong_type",
        [("bash", {"command": 5})],
        differs="names the parameter",
        ours=(r"\Abash: command must be a string\Z", True),
    ),
    Case(
        "trace_shows_only_the_command",
        [bash("set -x"), bash("echo traced"), bash("set +x; echo quiet")],
        differs="the line that ends a command is not traced into the output",
        ours=(r"\A\++ set \+x\nquiet\Z", False),
    ),
]

READ = [
    Case("text", [read("a.txt")], LINES),
    Case("absolute_path", [read("{workdir}/a.txt")], LINES),
    Case("dotted_path", [read("./x/../a.txt")], LINES),
    Case("empty_file", [read("e")], {"e": b""}),
    Case("windows_newlines", [read("w")], {"w": b"a\r\nb\r\n"}),
    Case("byte_order_mark", [read("w")], {"w": b"\xef\xbb\xbfa\n"}),
    Case("nul_in_text", [read("n")], {"n": b"a\0b\n"}),
    Case("lines", [read("a.txt", 2, 3)], LINES),
    Case("first_line", [read("a.txt", 1, 1)], LINES),
    Case("lines_to_the_end", [read("a.txt", 3, -1)], LINES),
    Case("lines_from_zero", [read("a.txt", 0, 0)], LINES),
    Case("lines_backwards", [read("a.txt", 3, 2)], LINES),
    Case("lines_past_the_end", [read("a.txt", 90, 99)], LINES),
    Case("no_lines", [("read", {"file_path": "a.txt", "view_range": []})], LINES),
    Case("one_number_of_lines", [read("a.txt", 1)], LINES),
    Case("missing", [read("none.txt")]),
    Case("directory", [read(".")]),
    Case("below_a_file", [read("a.txt/b")], LINES),
    Case("outside_absolute", [read("/etc/hostname")]),
    Case("outside_relative", [read("../../etc/hostname")]),
    Case("link_inside", [read("l")], {**LINES, "l": Link("a.txt")}),
    Case("link_chain", [read("m")], {**LINES, "l": Link("a.txt"), "m": Link("l")}),
    Case("link_outside", [read("l")], {"l": Link("/etc/hostname")}),
    Case("link_to_nothing", [read("l")], {"l": Link("nothing")}),
    Case("link_loop", [read("l")], {"l": Link("m"), "m": Link("l")}),
    Case("link_to_directory", [read("d/a.txt")], {"d": Link("e"), "e/a.txt": b"in e\n"}),
    Case("not_utf8", [read("b")], {"b": b"\xff\xfe"}),
    Case("fifo", [read("f")], {"f": Fifo()}),
    Case("too_large", [read("long.txt")], LONG),
    Case("too_large_by_lines", [read("long.txt", 30_000, 30_010)], LONG),
    Case("too_large_last_line", [read("long.txt", 40_000, 0)], LONG),
    Case("too_large_too_many_lines", [read("long.txt", 1, 0)], LONG),
    Case("one_huge_line", [read("h", 1, 1)], {"h": b"x" * (300 * KIB)}),
    Case("png", [read("p.png")], {"p.png": PNG}),
    Case("jpeg_in_capitals", [read("p.JPG")], {"p.JPG": PNG}),
    Case("pdf", [read("d.pdf")], {"d.pdf": b"%PDF-1.7\n"}),
    Case("lines_of_an_image", [read("p.gif", 1, 2)], {"p.gif": PNG}),
    Case("image_too_large", [read("p.webp")], {"p.webp": b"x" * (4 * KIB * KIB)}),
    Case("nul_in_path", [read("a\0b")]),
    Case("unicode_name", [read("말.txt")], {"말.txt": b"horse\n"}),
    Case(
        "over_100_000_characters",
        [read("big.txt")],
        {"big.txt": b"0123456789\n" * 12_000},
        differs="a result over 100,000 characters becomes a preview that names the file",
        ours=(r"\A\[output truncated: 132000 characters .* in /workspace/big\.txt; read it in parts", False),
    ),
    Case(
        "no_path",
        [("read", {})],
        differs="names the parameter",
        ours=(r"\Aread: file_path is required\Z", True),
    ),
]

WRITE = [
    Case("new", [write("n.txt", "a\nb"), read("n.txt")]),
    Case("nested", [write("x/y/z.txt", "deep"), read("x/y/z.txt")]),
    Case("overwrite", [write("a.txt", "short"), read("a.txt")], LINES),
    Case("empty", [write("n.txt", ""), read("n.txt")]),
    Case("unicode_content", [write("n.txt", "안녕\r\n"), read("n.txt")]),
    Case("absolute", [write("{workdir}/n.txt", "abs"), bash("cat n.txt")]),
    Case("outside", [write("/tmp/outside.txt", "x")]),
    Case("onto_a_directory", [write("d", "x")], {"d/f": b""}),
    Case("below_a_file_to_write", [write("a.txt/b", "x")], LINES),
    Case(
        "through_a_link",
        [write("l", "new"), bash("cat a.txt; test -L l && echo link")],
        {**LINES, "l": Link("a.txt")},
    ),
    Case("through_a_dangling_link", [write("l", "new"), bash("cat made.txt")], {"l": Link("made.txt")}),
    Case("through_a_link_outside", [write("l", "x")], {"l": Link("/tmp/outside-by-link")}),
    Case(
        "lone_surrogate_in_content",
        [write("n.txt", "a\udfffb"), read("n.txt")],
        differs="a lone surrogate becomes U+FFFD; there the file is emptied and the call fails",
        ours=("\\Aa\ufffdb\\Z", False),
    ),
]

EDIT = [
    Case("once", [edit("a.txt", "two", "2"), read("a.txt")], LINES),
    Case("over_lines", [edit("a.txt", "one\ntwo", "1\n2"), read("a.txt")], LINES),
    Case("removes", [edit("a.txt", "two\n", ""), read("a.txt")], LINES),
    Case("twice", [edit("a.txt", "o", "0")], LINES),
    Case("every", [edit("a.txt", "o", "0", replace_all=True), read("a.txt")], LINES),
    Case("not_found", [edit("a.txt", "five", "5")], LINES),
    Case("empty_old_string", [edit("a.txt", "", "x")], LINES),
    Case("missing_file", [edit("none", "a", "b")]),
    Case("directory_to_edit", [edit(".", "a", "b")]),
    Case("binary", [edit("b", "a", "b")], {"b": b"\xff"}),
    Case("too_large_to_edit", [edit("long.txt", "a", "b")], LONG),
    Case("outside_to_edit", [edit("../x", "a", "b")]),
    Case("windows_newlines_stay", [edit("w", "b", "B"), bash("od -c w")], {"w": b"a\r\nb\r\n"}),
    Case("false_flag", [edit("a.txt", "o", "0", replace_all=False)], LINES),
]

GLOB = [
    Case("every_python_file", [glob("**/*.py")], TREE),
    Case("one_level", [glob("src/*")], TREE),
    Case("hidden", [glob(".h*")], TREE),
    Case("in_a_path", [glob("*.py", path="src")], TREE),
    Case("in_an_absolute_path", [glob("*.txt", path="{workdir}/src")], TREE),
    Case("no_match", [glob("*.rs")], TREE),
    Case("absolute_pattern", [glob("/etc/*")]),
    Case("parent_in_pattern", [glob("../*")]),
    Case("path_outside", [glob("*", path="/etc")]),
    Case("missing_path", [glob("*", path="nowhere")]),
    Case("through_a_link_out", [glob("out/host*")], TREE),
    Case("empty_pattern", [glob("")]),
    Case("at_most_200", [glob("f*")], {f"f{number:03}": b"" for number in range(230)}),
]

GREP = [
    Case("everywhere", [grep("needle")], TREE, unordered=True),
    Case("regular_expression", [grep(r"^needle\s*=\s*\d$")], TREE, unordered=True),
    Case("ignore_case", [grep("(?i)needle", path="src")], TREE, unordered=True),
    Case("one_file", [grep("needle", path="src/c.txt")], TREE),
    Case("one_binary_file", [grep("needle", path="binary.bin")], TREE),
    Case("nothing_found", [grep("absent")], TREE),
    Case("bad_expression", [grep("(open")], TREE),
    Case("path_outside_to_search", [grep("root", path="/etc")]),
    Case("missing_path_to_search", [grep("x", path="nowhere")]),
    Case("not_utf8_lines", [grep("caf", path="latin.txt")], TREE),
    Case("long_lines_are_skipped", [grep("needle", path="wide.txt")], TREE),
    Case("fifo_is_skipped", [grep("x")], {"f": Fifo(), "g": b"x\n"}),
    Case(
        "found_too_much",
        [grep("x")],
        {"g": b"x" * 90 + b"\n" + (b"x" * 90 + b"\n") * 2000},
        differs="a result over 100,000 characters becomes a preview with the path of the whole",
        ours=(
            r"\A\[output truncated: \d+ characters .* in /workspace/\.corral/outputs/grep-\w+\.txt;",
            False,
        ),
    ),
]

CASES = {
    f"{tool}_{case.name}": case
    for tool, cases in {
        "bash": BASH,
        "read": READ,
        "write": WRITE,
        "edit": EDIT,
        "glob": GLOB,
        "grep": GREP,
    }.items()
    for case in cases
}

ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}


@pytest.mark.parametrize("name", CASES)
async def test_our_toolset_answers_like_the_official_one(name: str, open_folder: Path) -> None:
    case = CASES[name]
    _lay_out(open_folder / "workspace", case)
    _lay_out(open_folder / "official", case)

    official = await _through_official(open_folder / "official", case)
    ours = await _through_ours(open_folder, case)

    if case.differs is None:
        assert ours == official
    else:
        assert ours != official, "no longer different: compare it like the others"
        content, is_error = ours[-1]
        pattern, expected_error = case.ours
        assert re.search(pattern, content[0]["text"])
        assert is_error is expected_error


def test_there_are_enough_cases() -> None:
    assert sum(len(case.calls) for case in CASES.values()) >= 60


async def test_the_kept_end_of_a_long_output_is_the_official_one_and_a_little_more(open_folder: Path) -> None:
    case = CASES["bash_truncated"]
    _lay_out(open_folder / "workspace", case)
    _lay_out(open_folder / "official", case)

    [(official, _)] = await _through_official(open_folder / "official", case)
    [(ours, _)] = await _through_ours(open_folder, case)

    head, _, kept = official[0]["text"].partition("\n")
    assert head == "[output truncated]"
    our_kept = ours[0]["text"].split("\n", 2)[2]
    assert our_kept.endswith(kept)
    assert len(our_kept) - len(kept) < 100


def _lay_out(workspace: Path, case: Case) -> None:
    workspace.mkdir()
    for age, (name, content) in enumerate(case.files.items()):
        path = workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case bytes():
                path.write_bytes(content)
                os.utime(path, (1_700_000_000 + age, 1_700_000_000 + age))
            case Link(target):
                path.symlink_to(target)
            case Fifo():
                os.mkfifo(path)


async def _through_ours(folder: Path, case: Case) -> list[Result]:
    async with hands(folder, env={}) as ours:

        async def call(name: str, input: dict[str, Any]) -> Result:
            output = await ours.sandbox.execute(name, input)
            return output.content, output.is_error

        return await _results(case, "/workspace", call)


async def _through_official(workdir: Path, case: Case) -> list[Result]:
    tools = {
        tool.name: tool
        for tool in beta_agent_toolset_20260401(AgentToolContext(workdir=workdir, env=ENVIRONMENT))
    }

    async def call(name: str, input: dict[str, Any]) -> Result:
        try:
            result, is_error = await tools[name].call(input), False
        except ToolError as error:
            result, is_error = error.content, True
        except Exception as error:
            result, is_error = repr(error), True
        # As the SDK's session runner turns a result into an event.
        if isinstance(result, str):
            return [{"type": "text", "text": result or "(no output)"}], is_error
        return [dict(block) for block in result], is_error

    try:
        return await _results(case, str(workdir), call)
    finally:
        # What the SDK's runners do at the end; it has no public name.
        if shell := getattr(tools["bash"], "_context_manager", None):
            await shell.__aexit__(None, None, None)


async def _results(
    case: Case, workdir: str, call: Callable[[str, dict[str, Any]], Awaitable[Result]]
) -> list[Result]:
    results: list[Result] = []
    for name, input in case.calls:
        given = {
            key: value.replace("{workdir}", workdir) if isinstance(value, str) else value
            for key, value in input.items()
        }
        content, is_error = await call(name, given)
        results.append(([_normal(block, workdir, case.unordered) for block in content], is_error))
    return results


def _normal(block: dict[str, Any], workdir: str, unordered: bool) -> dict[str, Any]:
    if block["type"] != "text":
        return block
    text = str(block["text"]).replace(workdir, "/workspace")
    # bash counts lines from the start of the session, and ours are shorter.
    text = re.sub(r"/bin/bash: line \d+:", "/bin/bash: line N:", text)
    if unordered:
        text = "\n".join(sorted(text.split("\n")))
    return {**block, "text": text}
