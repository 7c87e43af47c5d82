"""A session's events as a person reads them in a terminal, as they come."""

import time
from collections.abc import Callable
from typing import Any, Final

from rich.console import Console
from rich.text import Text

_RESULT_LINES: Final = 12
_LINE_CHARACTERS: Final = 160


class TranscriptView:
    """Feed it events; it prints them, and keeps the figures for a summary.

    `clock` gives seconds and is called when an event arrives.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._sent_at = clock()
        self._step_at: float | None = None
        self._calls: dict[str, tuple[str, float]] = {}
        self._streamed: dict[str, int] = {}
        self.first_token_seconds: float | None = None
        self.steps = 0
        self.tool_calls = 0
        self.tokens = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0}

    def sent(self) -> None:
        """A message is about to be sent: time to first token counts from here."""
        self._sent_at = self._clock()

    def show(self, event: dict[str, Any]) -> None:
        """Print one event; those that say nothing to a reader print nothing."""
        match event["type"]:
            case "span.model_request_start":
                self._step_at = self._clock()
            case "span.model_request_end":
                self._request_end(event)
            case "event_start":
                self._first_token()
                if event["event"]["type"] == "agent.thinking":
                    self._console.print(Text("  thinking …", style="dim"))
            case "event_delta":
                self._delta(event)
            case "agent.message":
                self._message(event)
            case "agent.tool_use" | "agent.mcp_tool_use" | "agent.custom_tool_use":
                self._tool_use(event)
            case "agent.tool_result" | "user.tool_result" | "user.custom_tool_result":
                self._tool_result(event)
            case "session.error":
                error = event["error"]
                self._console.print(
                    Text(f"  {error['type']}: {error['message']} ({error['retry_status']['type']})", "red")
                )
            case "session.status_idle":
                stop = event["stop_reason"]["type"]
                self._console.print(Text(f"  session idle: {stop}", style="dim"))
            case _:
                pass

    def _first_token(self) -> None:
        if self.first_token_seconds is None:
            self.first_token_seconds = self._clock() - self._sent_at

    def _delta(self, event: dict[str, Any]) -> None:
        text = event["delta"]["content"]["text"]
        if event["event_id"] not in self._streamed:
            self._console.print(Text("● ", style="bold cyan"), end="")
        self._streamed[event["event_id"]] = self._streamed.get(event["event_id"], 0) + len(text)
        self._console.print(Text(text), end="", soft_wrap=True)

    def _message(self, event: dict[str, Any]) -> None:
        self._first_token()
        whole = "".join(block.get("text", "") for block in event["content"])
        shown = self._streamed.pop(event["id"], 0)
        if not shown:
            self._console.print(Text("● ", style="bold cyan"), end="")
        self._console.print(Text(whole[shown:]), soft_wrap=True)

    def _tool_use(self, event: dict[str, Any]) -> None:
        self._first_token()
        self.tool_calls += 1
        self._calls[event["id"]] = (event["name"], self._clock())
        line = Text("▶ ", style="bold yellow")
        line.append(event["name"], style="bold yellow")
        line.append("  " + _input_line(event["input"]))
        self._console.print(line)

    def _tool_result(self, event: dict[str, Any]) -> None:
        call = event.get("tool_use_id") or event.get("custom_tool_use_id") or ""
        _, began = self._calls.pop(call, ("", self._clock()))
        content: list[dict[str, Any]] = event.get("content") or []
        text = "\n".join(block.get("text", f"[{block['type']}]") for block in content)
        style = "red" if event.get("is_error") else "dim"
        for line in _shortened(text):
            self._console.print(Text(f"  │ {line}", style=style), soft_wrap=True)
        seconds = self._clock() - began
        self._console.print(
            Text(f"  └ {'failed' if event.get('is_error') else 'ok'} in {seconds:.2f} s", "dim")
        )

    def _request_end(self, event: dict[str, Any]) -> None:
        self.steps += 1
        usage = event["model_usage"]
        for name in self.tokens:
            self.tokens[name] += usage[name]
        self.tokens["input_tokens"] += usage["cache_creation_input_tokens"]
        seconds = 0.0 if self._step_at is None else self._clock() - self._step_at
        cached = usage["cache_read_input_tokens"]
        read = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
        self._console.print(
            Text(
                f"  step {self.steps}: {seconds:.2f} s, {read} tokens in"
                f" ({cached} from the cache), {usage['output_tokens']} out",
                style="dim",
            )
        )


def _input_line(given: dict[str, Any]) -> str:
    if "command" in given:
        return str(given["command"]).replace("\n", " ⏎ ")[:_LINE_CHARACTERS]
    shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return shown[:_LINE_CHARACTERS]


def _shortened(text: str) -> list[str]:
    lines = [line[:_LINE_CHARACTERS] for line in text.rstrip("\n").split("\n")]
    if len(lines) <= _RESULT_LINES:
        return lines
    head, tail = _RESULT_LINES // 3, _RESULT_LINES - _RESULT_LINES // 3
    return [*lines[:head], f"… {len(lines) - head - tail} lines …", *lines[-tail:]]
