"""Sessions and their facts as tables for a terminal."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from corral.cli.printable import printable
from corral.cli.session_facts import Facts, OpenCall, duration, moment, money, now, usage_in_words

_STYLES = {"running": "green", "rescheduling": "yellow", "terminated": "dim"}
_DECISION_STYLES = {"allowed": "green", "denied": "red", "failed": "yellow"}
_DECISIONS = 20
"""Most hosts that are shown to a person."""


def print_list(sessions: Sequence[dict[str, Any]]) -> None:
    """One line for each session."""
    console = Console(highlight=False)
    if not sessions:
        console.print("No sessions. `corral chat` starts one.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("SESSION", "STATUS", "AGENT", "AGE", "COST", "TITLE"):
        table.add_column(heading, no_wrap=heading in ("SESSION", "STATUS", "AGE"), overflow="fold")
    for session in sessions:
        age = duration((now() - moment(session["created_at"])).total_seconds())
        table.add_row(
            session["id"],
            Text(session["status"], _STYLES.get(session["status"], "")),
            Text(printable(session["agent"]["name"])),
            age,
            money(session["usage"]["list_cost"]),
            Text(printable(session["title"] or "")),
        )
    # Ids must be whole, so that they can be copied, also where the terminal is narrow or no terminal at all.
    console.print(table, width=max(console.width, 110), soft_wrap=True)


def _hands(item: dict[str, Any]) -> str:
    """Who has the session's newest work item, or why it ended."""
    if item["state"] == "stopped":
        return f"{item['work_id']} ended {item['stopped_at']}: {item['stop_reason'] or 'no reason was kept'}"
    if item["worker_id"] is None:
        return f"{item['work_id']} is {item['state']}; no worker has taken it"
    return f"{item['work_id']} is {item['state']}, with worker {item['worker_id']}"


def print_facts(session: dict[str, Any], facts: Facts) -> None:
    """All there is to tell about one session."""
    console = Console(highlight=False, soft_wrap=True)
    agent = session["agent"]
    lines = {
        "session": session["id"],
        "title": session["title"],
        "status": session["status"],
        "agent": f"{agent['name']} ({agent['id']}, version {agent['version']})",
        "model": agent["model"]["id"],
        "environment": session["environment_id"],
        "created": session["created_at"],
        "updated": session["updated_at"],
        "used": usage_in_words(session["usage"]),
    }
    for name, value in lines.items():
        if value is not None:
            console.print(Text(f"{name:<12} ", "dim").append(printable(str(value)), "default"))
    for item in session.get("hands", ())[:1]:
        console.print(Text(f"{'hands':<12} ", "dim").append(printable(_hands(item)), "default"))
    _print_egress(console, session.get("egress", ()))
    console.print(Text(f"\n{printable(facts.story)}", "bold"))
    if facts.queued:
        console.print(Text(f"{facts.queued} message(s) wait to be read."))
    for call in facts.calls:
        console.print(_call(call))
    if facts.advice is not None:
        console.print(Text(f"What to do: {facts.advice}"))


def _print_egress(console: Console, decisions: Sequence[dict[str, Any]]) -> None:
    """Which hosts the sandbox has asked for; first those that it did not get."""
    ordered = sorted(decisions, key=lambda one: one["decision"] == "allowed")
    for number, one in enumerate(ordered[:_DECISIONS]):
        requests = f"{one['requests']} request{'' if one['requests'] == 1 else 's'}"
        why = f": {one['reason']}" if one["reason"] else ""
        line = Text(f"{'network' if number == 0 else '':<12} ", "dim")
        line.append(one["decision"], _DECISION_STYLES.get(one["decision"], ""))
        line.append(
            printable(f" {one['host']}:{one['port']}, {requests}, last {one['last_at']}{why}"), "default"
        )
        console.print(line)
    if len(ordered) > _DECISIONS:
        console.print(Text(f"{'':<12} and {len(ordered) - _DECISIONS} more; --json shows all", "dim"))


def _call(call: OpenCall) -> Text:
    given = call.input.get("command") if set(call.input) == {"command"} else None
    shown = str(given) if given is not None else msgspec.json.encode(call.input).decode()
    waits = {
        "approval": "waits for a yes or no",
        "answer": "waits for a result",
        "worker": "is with the worker",
    }
    line = Text("▶ ", "yellow").append(printable(call.name), "bold yellow")
    line.append(f"  {printable(shown)}").append(
        f"\n  {waits[call.need]} since {call.since}; {call.id}", "dim"
    )
    return line
