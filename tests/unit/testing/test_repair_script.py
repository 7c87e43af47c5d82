"""The coding agent: it repairs a repository by what its tools tell it, and admits when it cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import corral.testing
from corral.testing.conversation import Conversation
from corral.testing.scripts import repair
from corral.testing.scripts.mutations import candidates
from corral.testing.steps import Step, ToolCall

DEMO = Path(corral.testing.__file__).parent / "demo_repo"
BASH = ["bash"]
TOOLSET = ["bash", "read", "edit", "grep"]


class Desk:
    """Plays the loop around the script, with real commands in `folder`."""

    def __init__(self, folder: Path, tools: list[str]) -> None:
        self.folder = folder
        self.tools = [{"name": name, "input_schema": {"type": "object"}} for name in tools]
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": "Make the tests pass."}]
        self.calls: list[str] = []

    def step(self) -> Step:
        body = {"model": "m", "max_tokens": 10, "messages": self.messages, "tools": self.tools}
        return repair.step(Conversation.of(body), 0)

    def run(self) -> str:
        for _ in range(60):
            step = self.step()
            if not step.tools:
                return step.text or ""
            self.answer(step.tools)
        pytest.fail(f"the script did not end: {self.calls}")

    def answer(self, tools: list[ToolCall]) -> None:
        calls: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        for tool in tools:
            self.calls.append(tool.name)
            text, failed = self.execute(tool)
            call = f"toolu_{len(self.calls)}"
            calls.append({"type": "tool_use", "id": call, "name": tool.name, "input": tool.input})
            results.append({"type": "tool_result", "tool_use_id": call, "content": text, "is_error": failed})
        self.messages += [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]

    def execute(self, tool: ToolCall) -> tuple[str, bool]:
        match tool.name:
            case "read":
                return Path(tool.input["file_path"]).read_text(), False
            case "edit":
                path, old = Path(tool.input["file_path"]), tool.input["old_string"]
                text = path.read_text()
                if text.count(old) != 1:
                    return f"edit: old_string appears {text.count(old)} times", True
                path.write_text(text.replace(old, tool.input["new_string"]))
                return f"edited {path}", False
            case "grep":
                command = ["grep", "-rnE", tool.input["pattern"], tool.input["path"]]
            case _:
                command = ["bash", "-c", tool.input["command"]]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr, done.returncode != 0


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    shutil.copytree(DEMO, tmp_path / "tock", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.parametrize("tools", [BASH, TOOLSET], ids=["bash alone", "the toolset"])
def test_it_repairs_the_demonstration_repository(demo: Path, tools: list[str]) -> None:
    desk = Desk(demo, tools)

    said = desk.run()

    assert said.startswith("All 27 tests pass now. The fault was in tock/showing.py, line 41")
    assert "if seconds >= size:" in (demo / "tock/tock/showing.py").read_text()
    assert set(desk.calls) == set(tools)


def test_the_demonstration_repository_fails_in_two_tests(demo: Path) -> None:
    done = subprocess.run(
        ["python3", "-B", "-m", "unittest", "discover", "-s", "tests", "-t", "."],
        cwd=demo / "tock",
        capture_output=True,
        text=True,
        check=False,
    )

    assert "Ran 27 tests" in done.stderr
    assert "FAILED (failures=2)" in done.stderr


def package(folder: Path, code: str, test: str) -> Path:
    (folder / "tests").mkdir()
    (folder / "tests/__init__.py").touch()
    (folder / "shop.py").write_text(code)
    (folder / "tests/test_shop.py").write_text(
        f"import unittest\nimport shop\n\n\nclass Shop(unittest.TestCase):\n"
        f"    def test_it(self):\n        {test}\n"
    )
    return folder


def test_it_undoes_a_change_that_does_not_help_and_tries_the_next(tmp_path: Path) -> None:
    code = "def total(a, b):\n    if a < b:\n        return a + b\n    return a - b\n"
    desk = Desk(package(tmp_path, code, "self.assertEqual(shop.total(5, 2), 7)"), TOOLSET)

    said = desk.run()

    assert "Changes tried: 3" in said
    assert (tmp_path / "shop.py").read_text() == code.replace("a - b", "a + b")


def test_it_leaves_the_file_as_it_was_when_nothing_helps(tmp_path: Path) -> None:
    code = "def total(a, b):\n    if a < b:\n        return 'none'\n    return ''\n"
    desk = Desk(package(tmp_path, code, "self.assertEqual(shop.total(5, 2), 7)"), BASH)

    said = desk.run()

    assert said == "I tried 1 changes, none helped, and I undid them all. 1 test (test_it) still fail."
    assert (tmp_path / "shop.py").read_text() == code


def test_it_says_so_when_there_is_nothing_to_repair(tmp_path: Path) -> None:
    code = "def total(a, b):\n    return a + b\n"
    desk = Desk(package(tmp_path, code, "self.assertEqual(shop.total(5, 2), 7)"), BASH)

    assert desk.run() == "All 1 tests pass; there is nothing to repair."


def test_it_stops_without_tests_or_without_bash(tmp_path: Path) -> None:
    assert Desk(tmp_path, BASH).run().startswith("I found no tests here")
    assert Desk(tmp_path, ["read"]).run().startswith("I cannot repair anything")


def test_every_candidate_replaces_text_that_stands_once() -> None:
    code = (
        "def f(a):\n    if a > 1:\n        return 1\n    if a > 1:\n        return 2\n    return g(a)\n\n\n"
        "def g(a):\n    return a % 3\n"
    )
    changes = candidates(code, {"f"})

    assert len(changes) >= 4
    assert all(code.count(change.old) == 1 and change.old != change.new for change in changes)
    assert "return a // 3" in {change.after for change in changes}
