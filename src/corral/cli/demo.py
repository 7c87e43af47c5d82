"""`corral demo`: an agent repairs a real repository in a sandbox, from nothing to passing tests."""

import asyncio
import re
import shutil
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from corral.cli.api_client import ApiClient
from corral.cli.failure import Failure
from corral.cli.options import data_option, json_option
from corral.cli.private_corral import corral_at_hand
from corral.cli.running import default_data_dir, run_until_signal, unless_stopped
from corral.cli.transcript_view import TranscriptView

_MODEL: Final = "claude-haiku-4-5"
_TASK: Final = (
    "Some tests of the Python package in your working directory fail. Find the fault, repair it in the "
    "package (not in the tests), and run all tests again with `python3 -m unittest` until they pass. Say in "
    "one or two sentences what was wrong."
)
_SYSTEM: Final = "You are a careful engineer. Look before you change anything, and prove that it works."
_PASSED: Final = re.compile(r"^Ran (\d+) tests? in .*\n+OK", re.MULTILINE)


@click.command()
@data_option
@click.option("--model", default=_MODEL, show_default=True, help="Model of the agent, by its Claude API id.")
@click.option("--keep", is_flag=True, help="Keep the session and its workspace.")
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Save what the terminal showed as an SVG file.",
)
@json_option
def demo(data: Path | None, model: str, keep: bool, picture: Path | None, as_json: bool) -> None:
    """An agent repairs a real repository in a sandbox.

    Uses the Corral that `corral up` runs on this machine, or starts a private one and stops it afterwards.
    Without an inference credential the built-in scripted model plays the agent; with ANTHROPIC_API_KEY or
    CORRAL_INFERENCE__BASE_URL a real model does the work. Exits with 0 only if the tests pass in the end.

    \b
    Example:
      corral demo
      ANTHROPIC_API_KEY=... corral demo --model claude-sonnet-4-5
    """
    outcome: list[bool] = []
    width = 150 if picture is not None else None
    console = Console(
        highlight=False, stderr=as_json, soft_wrap=picture is None, record=picture is not None, width=width
    )

    async def run(stop: asyncio.Event) -> None:
        outcome.append(
            await unless_stopped(stop, _run(console, data or default_data_dir(), model, keep, as_json))
        )

    run_until_signal(run)
    if picture is not None:
        picture.write_text(_without_web_fonts(console.export_svg(title="make demo")), "utf-8")
    sys.exit(0 if outcome == [True] else 1)


async def _run(console: Console, data: Path, model: str, keep: bool, as_json: bool) -> bool:
    began = time.monotonic()
    async with corral_at_hand(data, console) as place, ApiClient(place.base_url, place.api_key) as api:
        agent = await api.post(
            "/v1/agents",
            {
                "name": "Repairer",
                "model": model,
                "system": _SYSTEM,
                "tools": [{"type": "agent_toolset_20260401"}],
            },
        )
        session = await api.post(
            "/v1/sessions",
            {"agent": agent["id"], "environment_id": place.environment_id, "title": "corral demo"},
        )
        workspace = place.workspaces / session["id"]
        await asyncio.to_thread(_unpack, workspace)
        console.print(Text(f"\nThe repository is in the workspace of {session['id']}. The agent begins.\n"))
        view = TranscriptView(console)
        passed = await _watch(api, session["id"], place.scripted, view)
        final = await api.get(f"/v1/sessions/{session['id']}")
        if not keep:
            await _remove(api, session["id"])
        figures = _figures(view, final, passed, time.monotonic() - began)
        _summary(console, figures, as_json)
        return passed


async def _watch(api: ApiClient, session_id: str, scripted: bool, view: TranscriptView) -> bool:
    """Give the task and show what happens; True if the last run of the tests passed."""
    passed = False
    text = _TASK + ("\nscript: repair" if scripted else "")
    async with api.stream(session_id) as events:
        view.sent()
        await api.send(session_id, {"type": "user.message", "content": [{"type": "text", "text": text}]})
        async for event in events:
            view.show(event)
            if event["type"] == "agent.tool_result":
                passed = _tests_passed(event, passed)
            if event["type"] == "session.status_idle":
                return passed
    raise Failure("The session's stream ended before the agent was done.", "run the demo again.")


def _without_web_fonts(svg: str) -> str:
    """A picture must not fetch anything when it is looked at."""
    return re.sub(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", "", svg, flags=re.DOTALL)


def _tests_passed(result: dict[str, Any], before: bool) -> bool:
    """Whether this result shows a run of tests that passed; a result without a test run changes nothing."""
    output = "\n".join(block.get("text", "") for block in result["content"])
    if "Ran " not in output or " test" not in output:
        return before
    return _PASSED.search(output) is not None and not result["is_error"]


async def _remove(api: ApiClient, session_id: str) -> None:
    await api.post(f"/v1/sessions/{session_id}/archive")


def _unpack(workspace: Path) -> None:
    source = resources.files("corral.testing").joinpath("demo_repo")
    with resources.as_file(source) as folder:
        shutil.copytree(folder, workspace, ignore=shutil.ignore_patterns("__pycache__"))


def _figures(view: TranscriptView, session: dict[str, Any], passed: bool, seconds: float) -> dict[str, Any]:
    return {
        "tests_passed": passed,
        "first_token_seconds": round(view.first_token_seconds or 0.0, 3),
        "model_requests": view.steps,
        "tool_calls": view.tool_calls,
        **view.tokens,
        "agent_seconds": session["usage"]["active_seconds"],
        "list_cost_cents": session["usage"]["list_cost"]["amount"],
        "total_seconds": round(seconds, 1),
    }


def _summary(console: Console, figures: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(figures).decode())
        return
    tests = "The tests pass." if figures["tests_passed"] else "The tests do NOT pass."
    style = "bold green" if figures["tests_passed"] else "bold red"
    console.print(Text(f"\n{tests}", style=style))
    console.print(
        Text(
            f"  first token after {figures['first_token_seconds']:.2f} s; {figures['model_requests']} model "
            f"requests and {figures['tool_calls']} tool calls in {figures['agent_seconds']:.1f} s\n"
            f"  {figures['input_tokens']} tokens in, {figures['cache_read_input_tokens']} more from the cache"
            f", {figures['output_tokens']} out; list cost {int(figures['list_cost_cents']) / 100:.2f} USD\n"
            f"  {figures['total_seconds']:.1f} s in all, starting and stopping Corral included"
        )
    )
