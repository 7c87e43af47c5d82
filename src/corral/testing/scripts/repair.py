"""A coding agent that repairs a Python repository: it runs the tests, finds the function that they accuse,
and tries small changes to it until they pass. It knows nothing of any repository but what the tools tell it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from corral.testing.conversation import Conversation, ToolResult
from corral.testing.scripts.mutations import Change, candidates
from corral.testing.scripts.workbench import Kind, Workbench, kind_of
from corral.testing.steps import Step

MAX_ATTEMPTS = 12
"""Changes tried before giving up."""
_FAILED = re.compile(r"^(?:FAIL|ERROR): (\S+)", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (\w+)\n\s*(.*)$', re.MULTILINE)
_RAN = re.compile(r"^Ran (\d+) tests?", re.MULTILINE)
_CALL = re.compile(r"\b([A-Za-z_]\w*)\(")
_FOUND = re.compile(r"^(.+?\.py):(\d+):", re.MULTILINE)
_PATH = re.compile(r"(?<![\w.:/])(/[\w./-]*\w)")


def step(conversation: Conversation, turn: int) -> Step:
    """The next step, chosen by what the tools have returned since the task was given."""
    bench = Workbench(conversation.tool_names)
    if "bash" not in bench.tools:
        return Step(text="I cannot repair anything: I have no bash tool to run the tests with.")
    done = conversation.history(turn)
    if not done:
        return Step(
            thinking="First I need to see what is here and which tests there are.",
            text="I will look at the repository first.",
            tools=[bench.survey(_place(conversation))],
        )
    return _next(bench, done)


def _next(bench: Workbench, done: Sequence[ToolResult]) -> Step:
    root = _root(done[0].text)
    if root is None:
        return Step(text=f"I found no tests here, so there is nothing to repair by. I saw:\n{done[0].text}")
    last = done[-1]
    match kind_of(last):
        case Kind.SURVEY:
            return Step(text=f"The repository is {root}. I will run its tests.", tools=[bench.test(root)])
        case Kind.TEST:
            return _after_tests(bench, done, root)
        case Kind.SEARCH:
            return _after_search(bench, done, root)
        case Kind.READ:
            return _attempt(bench, done)
        case Kind.EDIT:
            return _after_edit(bench, done, root)
        case Kind.OTHER:
            return Step(text=f"I do not know what to do with the result of {last.name}, so I stop here.")


def _after_tests(bench: Workbench, done: Sequence[ToolResult], root: str) -> Step:
    output = done[-1].text
    edits = _of_kind(done, Kind.EDIT)
    ran = _RAN.search(output)
    if ran is None:
        return Step(text=f"The tests did not run, so I stop here:\n{_tail(output)}")
    if not _FAILED.search(output):
        return Step(text=_success(int(ran[1]), done, root))
    if edits:
        change = _changes(done)[len(edits) // 2]
        return Step(
            text=f"{_failures(output)} still fail, so that was not it. I undo the change.",
            tools=[bench.edit(_file(done), change.new, change.old)],
        )
    names = sorted(_suspects(output))
    if not names:
        return Step(
            text=f"{_failures(output)} fail, but I cannot tell which code they accuse:\n{_tail(output)}"
        )
    return Step(
        thinking=f"The failing tests call {', '.join(names)}. I have to find where that is defined.",
        text=f"{_failures(output)} fail. I will look for {', '.join(names)}.",
        tools=[bench.search(rf"def ({'|'.join(names)})\b", root)],
    )


def _after_search(bench: Workbench, done: Sequence[ToolResult], root: str) -> Step:
    path = _file(done)
    if not path:
        return Step(
            text=f"I did not find the code that the failing tests call, so I stop here:\n{done[-1].text}"
        )
    return Step(text=f"It is in {_short(path, root)}. I will read it.", tools=[bench.read(path)])


def _after_edit(bench: Workbench, done: Sequence[ToolResult], root: str) -> Step:
    if done[-1].is_error:
        return Step(text=f"The edit was refused, so I stop here: {done[-1].text}")
    if len(_of_kind(done, Kind.EDIT)) % 2:
        return Step(text="I will run the tests again.", tools=[bench.test(root)])
    return _attempt(bench, done)


def _attempt(bench: Workbench, done: Sequence[ToolResult]) -> Step:
    number = len(_of_kind(done, Kind.EDIT)) // 2
    changes = _changes(done)
    if number >= min(len(changes), MAX_ATTEMPTS):
        failures = _failures(_of_kind(done, Kind.TEST)[-1].text)
        return Step(
            text=f"I tried {number} changes, none helped, and I undid them all. {failures} still fail."
        )
    change = changes[number]
    return Step(
        thinking=f"Line {change.line} reads `{change.before}`. The failures would fit `{change.after}`.",
        text=f"I change line {change.line} from `{change.before}` to `{change.after}`.",
        tools=[bench.edit(_file(done), change.old, change.new)],
    )


def _changes(done: Sequence[ToolResult]) -> list[Change]:
    source = _of_kind(done, Kind.READ)[0].text
    return candidates(source, _suspects(_of_kind(done, Kind.TEST)[0].text))


def _of_kind(done: Sequence[ToolResult], kind: Kind) -> list[ToolResult]:
    return [result for result in done if kind_of(result) is kind]


def _place(conversation: Conversation) -> str:
    named = _PATH.search(conversation.text)
    return named[1] if named else "."


def _root(survey: str) -> str | None:
    """The folder that holds the tests: the first line is the place, the others are test files below it."""
    lines = [line.strip() for line in survey.splitlines() if line.strip()]
    tests = [line for line in lines[1:] if line.endswith(".py")]
    if not tests or not lines[0].startswith("/"):
        return None
    folder = min((path.rsplit("/", 1)[0] for path in tests), key=lambda path: path.count("/"))
    if folder.rsplit("/", 1)[-1] in ("tests", "test"):
        folder = folder.rsplit("/", 1)[0]
    return f"{lines[0].rstrip('/')}/{folder}".replace("/./", "/").removesuffix("/.")


def _suspects(output: str) -> set[str]:
    """Functions that the tracebacks accuse: those they end in, and those that a failing assertion calls."""
    names: set[str] = set()
    for path, function, code in _FRAME.findall(output):
        if "/unittest/" in path:
            continue
        if "test" not in path.rsplit("/", 1)[-1]:
            names.add(function)
        names |= {name for name in _CALL.findall(code) if name.islower() and not name.startswith("assert")}
    return names


def _file(done: Sequence[ToolResult]) -> str:
    """The file that defines most of what the failing tests call, tests aside; empty when there is none."""
    searches = _of_kind(done, Kind.SEARCH)
    root = _root(done[0].text) or ""
    found: Counter[str] = Counter()
    for path, _ in _FOUND.findall(searches[0].text if searches else ""):
        full = path if path.startswith("/") else f"{root}/{path.removeprefix('./')}"
        inner = full.removeprefix(root)
        if "/tests/" not in inner and not inner.rsplit("/", 1)[-1].startswith("test"):
            found[full] += 1
    return found.most_common(1)[0][0] if found else ""


def _failures(output: str) -> str:
    names = list(dict.fromkeys(_FAILED.findall(output)))
    return f"{len(names)} tests ({', '.join(names)})" if len(names) != 1 else f"1 test ({names[0]})"


def _success(count: int, done: Sequence[ToolResult], root: str) -> str:
    edits = _of_kind(done, Kind.EDIT)
    if not edits:
        return f"All {count} tests pass; there is nothing to repair."
    change = _changes(done)[(len(edits) - 1) // 2]
    return (
        f"All {count} tests pass now. The fault was in {_short(_file(done), root)}, line {change.line}: "
        f"`{change.before}` should have been `{change.after}`. Changes tried: {(len(edits) + 1) // 2}."
    )


def _short(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/")


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-20:])
