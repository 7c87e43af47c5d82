"""A session's events as a person reads them in a terminal, as they come."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import click
import msgspec
from rich.console import Console
from rich.text import Text

from corral.cli.api_client import Event
from corral.cli.printable import printable
from corral.cli.session_facts import answered_call, moment, stopped_in_words, usage_in_words

_RESULT_LINES: Final = 12
_LINE_CHARACTERS: Final = 160


class View(Protocol):
    """Something that shows events."""

    def show(self, event: Event) -> None:
        """Show one event."""
        ...


class JsonView:
    """Prints each event of the log once, as a line of JSON: client events when taken up, and no previews."""

    def show(self, event: Event) -> None:
        """Print one event."""
        if event.get("processed_at") is not None:
            click.echo(msgspec.json.encode(event))


class TranscriptView:
    """Feed it events; it prints them, and keeps the figures for a summary.

    `clock` gives seconds and is called when an event arrives; durations come from the events' own times, so
    they are right for a history too. `messages` shows what users said; `totals` shows at each stop what the
    session has used.
    """

    def __init__(
        self,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
        *,
        messages: bool = False,
        totals: bool = False,
    ) -> None:
        self._console = console
        self._clock = clock
        self._messages = messages
        self._totals = totals
        self._sent_at = clock()
        self._step_at: str | None = None
        self._calls: dict[str, str] = {}
        self._streamed: dict[str, str] = {}
        self._index = 0
        self._errors: list[Event] = []
        self._usage: dict[str, Any] | None = None
        self.first_token_seconds: float | None = None
        self.steps = 0
        self.tool_calls = 0
        self.tokens = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0}

    def sent(self) -> None:
        """A message is about to be sent: time to first token counts from here."""
        self._sent_at = self._clock()

    def show(self, event: Event) -> None:
        """Print one event; those that say nothing to a reader print nothing."""
        match event["type"]:
            case "event_start" | "event_delta":
                self._preview(event)
            case "span.model_request_start":
                self._step_at = event["processed_at"]
            case "span.model_request_end":
                self._request_end(event)
            case "agent.message":
                self._message(event)
            case "agent.tool_use" | "agent.mcp_tool_use" | "agent.custom_tool_use":
                self._tool_use(event)
            case "session.error":
                self._error(event)
            case str(kind) if kind.startswith("user.") and event["processed_at"] is None:
                pass
            case "user.message" | "system.message":
                self._said(event)
            case "user.tool_confirmation":
                self._verdict(event)
            case "user.interrupt":
                self._note("  interrupted", "yellow")
            case _ if answered_call(event) is not None:
                self._tool_result(event)
            case _:
                self._status(event)

    def _status(self, event: Event) -> None:
        match event["type"]:
            case "session.usage":
                self._usage = event["usage"]
            case "session.status_idle":
                self._note(f"  {stopped_in_words(event, self._errors)}", "dim")
                over = event["stop_reason"]["type"] != "requires_action"
                if self._totals and over and self._usage is not None:
                    self._note(f"  session so far: {usage_in_words(self._usage)}", "dim")
                self._errors.clear()
            case "span.outcome_evaluation_start":
                self._note(f"  the work is judged (evaluation {event['iteration'] + 1}) …", "dim")
            case "span.outcome_evaluation_end":
                met = event["result"] == "satisfied"
                self._note(
                    f"  judged: {event['result']}. {event['explanation']}", "green" if met else "yellow"
                )
            case "session.status_rescheduled":
                self._note("  the server tries again by itself …", "yellow")
            case "session.status_terminated":
                self._note("  The session has ended.", "yellow")
            case "session.deleted":
                self._note("  The session has been deleted.", "yellow")
            case "agent.thread_context_compacted":
                self._note("  the agent's memory of this session was condensed", "dim")
            case _:
                pass

    def _note(self, line: str, style: str) -> None:
        self._console.print(Text(printable(line), style=style), soft_wrap=True)

    def _first_token(self) -> None:
        if self.first_token_seconds is None:
            self.first_token_seconds = self._clock() - self._sent_at

    def _preview(self, event: Event) -> None:
        self._first_token()
        if event["type"] == "event_start":
            if event["event"]["type"] == "agent.thinking":
                self._note("  thinking …", "dim")
            return
        text, index = event["delta"]["content"]["text"], event["delta"]["index"]
        if event["event_id"] not in self._streamed:
            self._bullet()
        elif index != self._index:
            text = "\n" + text
        self._index = index
        self._streamed[event["event_id"]] = self._streamed.get(event["event_id"], "") + text
        self._console.print(Text(printable(text)), end="", soft_wrap=True)

    def _bullet(self) -> None:
        self._console.print(Text("● ", style="bold cyan"), end="")

    def _message(self, event: Event) -> None:
        self._first_token()
        whole = _text(event["content"])
        shown = self._streamed.pop(event["id"], None)
        if shown is None:
            self._bullet()
            self._console.print(Text(printable(whole)), soft_wrap=True)
        elif whole.startswith(shown):
            self._console.print(Text(printable(whole[len(shown) :])), soft_wrap=True)
        else:  # pieces were lost on the way
            self._console.print()
            self._bullet()
            self._console.print(Text(printable(whole)), soft_wrap=True)

    def _said(self, event: Event) -> None:
        if self._messages:
            mark = "❯ " if event["type"] == "user.message" else "system ❯ "
            line = Text(mark, style="bold green")
            self._console.print(line.append(printable(_text(event["content"])), "bold"), soft_wrap=True)

    def _verdict(self, event: Event) -> None:
        if event["result"] == "allow":
            self._calls[event["tool_use_id"]] = event["processed_at"]
            self._note("  allowed", "green")
            return
        why = event.get("deny_message")
        self._note(f"  denied{f': {why}' if why else ''}", "red")

    def _tool_use(self, event: Event) -> None:
        self._first_token()
        self.tool_calls += 1
        self._calls[event["id"]] = event["processed_at"]
        line = Text("▶ ", style="bold yellow")
        name = (
            event["name"] if "mcp_server_name" not in event else f"{event['mcp_server_name']}.{event['name']}"
        )
        line.append(printable(name), style="bold yellow")
        line.append("  " + _input_line(event["input"]))
        self._console.print(line)

    def _tool_result(self, event: Event) -> None:
        call = answered_call(event) or ""
        began = self._calls.pop(call, event["processed_at"])
        failed = event.get("is_error")
        for line in _shortened(_text(event.get("content") or [])):
            self._console.print(Text(f"  │ {line}", style="red" if failed else "dim"), soft_wrap=True)
        seconds = _seconds(began, event["processed_at"])
        self._note(f"  └ {'failed' if failed else 'ok'} in {seconds:.2f} s", "dim")

    def _error(self, event: Event) -> None:
        error = event["error"]
        self._errors.append(event)
        self._note(f"  {error['type']}: {error['message']} ({error['retry_status']['type']})", "red")

    def _request_end(self, event: Event) -> None:
        for _ in self._streamed:
            self._console.print(Text(" ⋯ cut off", style="dim"))
        self._streamed.clear()
        if event["is_error"]:
            return
        self.steps += 1
        usage = event["model_usage"]
        for name in self.tokens:
            self.tokens[name] += usage[name]
        self.tokens["input_tokens"] += usage["cache_creation_input_tokens"]
        seconds = 0.0 if self._step_at is None else _seconds(self._step_at, event["processed_at"])
        cached = usage["cache_read_input_tokens"]
        read = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
        self._note(
            f"  step {self.steps}: {seconds:.2f} s, {read} tokens in"
            f" ({cached} from the cache), {usage['output_tokens']} out",
            "dim",
        )


def _text(content: Sequence[dict[str, Any]]) -> str:
    return "\n".join(block.get("text", f"[{block['type']}]") for block in content)


def _seconds(began: str, ended: str) -> float:
    return max(0.0, (moment(ended) - moment(began)).total_seconds())


def _input_line(given: dict[str, Any]) -> str:
    if "command" in given:
        return printable(str(given["command"]).replace("\n", " ⏎ "))[:_LINE_CHARACTERS]
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return printable(shown)[:_LINE_CHARACTERS]


def _shortened(text: str) -> list[str]:
    lines = [line[:_LINE_CHARACTERS] for line in printable(text).rstrip("\n").split("\n")]
    if len(lines) <= _RESULT_LINES:
        return lines
    head, tail = _RESULT_LINES // 3, _RESULT_LINES - _RESULT_LINES // 3
    return [*lines[:head], f"… {len(lines) - head - tail} lines …", *lines[-tail:]]
