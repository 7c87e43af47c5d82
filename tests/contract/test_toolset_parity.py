"""Our toolset against the official one, call by call.

Each case runs through the toolset of the official Python SDK, in this process, and through ours, in a
bubblewrap sandbox, on equal workspaces. Content and `is_error` must be the same; where they are meant to
differ, the case says why and what ours answers.
"""

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools import ToolError
from anthropic.lib.tools.agent_toolset import AgentToolContext, beta_agent_toolset_20260401

from tests.contract.toolset_cases.case import Case, Fifo, Link
from tests.contract.toolset_cases.reading import READ
from tests.contract.toolset_cases.searching import GLOB, GREP
from tests.contract.toolset_cases.shell import BASH
from tests.contract.toolset_cases.writing import EDIT, WRITE
from tests.unit.hands.sandbox.given import hands

Result = tuple[list[dict[str, Any]], bool]

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


def test_there_are_enough_cases_and_most_are_equal() -> None:
    assert sum(len(case.calls) for case in CASES.values()) >= 300
    assert sum(case.differs is None for case in CASES.values()) >= 250


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
