"""Holds the conversation and compares: `python -m scripts.local_model PYTHON_OF_THE_MODEL`.

Exit status 0 only if every token came through unchanged.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from corral.cli.api_client import ApiClient
from corral.cli.failure import Failure
from corral.cli.private_corral import private_corral
from corral.cli.running import run_until_signal, unless_stopped
from corral.cli.transcript_view import TranscriptView
from scripts.local_model.comparison import Event, Finding, Received, compare
from scripts.local_model.recording import Exchange, recording

_SYSTEM: Final = "You are a friendly assistant. Answer in one or two short sentences."
_TURNS: Final = (
    "Hello! My name is Ada. Who are you?",
    "What is the capital of France, and what can one see there?",
    "How do you say 'good morning, my dear friend' in French, German and Spanish? « Ça va, Zoë ? » 🙂",
    "Thank you! Please write a short poem about the sea.",
)
_MAX_TOKENS: Final = 1_000
_LOAD_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Model:
    """The model's server while it runs."""

    base_url: str
    name: str
    load_seconds: float


@dataclass(frozen=True)
class Turn:
    """When a message was sent and when the first piece of the answer was here; `time.monotonic` seconds."""

    sent_at: float
    first_text_at: float | None


@click.command()
@click.argument("python", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(python: Path) -> None:
    """Talk to a real model through a private Corral, and compare what comes with what the model sent.

    PYTHON is the interpreter of the environment that holds the model.
    """
    outcome: list[bool] = []
    console = Console(highlight=False, soft_wrap=True)

    async def run(stop: asyncio.Event) -> None:
        outcome.append(await unless_stopped(stop, _run(console, python)))

    run_until_signal(run)
    sys.exit(0 if outcome == [True] else 1)


async def _run(console: Console, python: Path) -> bool:
    async with _model(python) as model, recording(model.base_url) as (proxy_url, exchanges):
        console.print(Text(f"The model {model.name} is there: loaded in {model.load_seconds:.1f} s."))
        settings = {
            "CORRAL_INFERENCE__PROVIDER": "gateway",
            "CORRAL_INFERENCE__BASE_URL": proxy_url,
            "CORRAL_INFERENCE__MAX_TOKENS": str(_MAX_TOKENS),
            # Empty counts as not set: nothing that the caller's shell says about models or databases.
            "CORRAL_INFERENCE__API_KEY": "",
            "CORRAL_INFERENCE__MODELS": "",
            "CORRAL_STORE__URL": "",
        }
        async with private_corral(settings) as place, ApiClient(place.base_url, place.api_key) as api:
            session_id = await _session(api, model.name, place.environment_id)
            turns, streamed = await _converse(api, session_id, TranscriptView(console), console)
            received = Received(
                streamed,
                [event async for page in api.pages(f"/v1/sessions/{session_id}/events") for event in page],
                (await api.get(f"/v1/sessions/{session_id}"))["usage"],
            )
    _figures(console, exchanges, turns, streamed)
    return _verdict(console, compare(exchanges, received))


@asynccontextmanager
async def _model(python: Path) -> AsyncGenerator[Model]:
    """The model's server, as a process that ends when its standard input does."""
    process = await asyncio.create_subprocess_exec(
        python,
        Path(__file__).with_name("model_server.py"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            line = await process.stdout.readline()
        if not line:
            raise Failure(
                "The model did not start.", "its message above says why; `make clean` starts afresh."
            )
        told = msgspec.json.decode(line)
        yield Model(told["base_url"], told["model"], told["seconds"])
    except TimeoutError as error:
        raise Failure(f"The model was not there after {_LOAD_SECONDS:.0f} s.", "try again.") from error
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _session(api: ApiClient, model: str, environment_id: str) -> str:
    agent = await api.post("/v1/agents", {"name": "Talker", "model": model, "system": _SYSTEM})
    session = await api.post(
        "/v1/sessions",
        {"agent": agent["id"], "environment_id": environment_id, "title": "make demo-local"},
    )
    return session["id"]


async def _converse(
    api: ApiClient, session_id: str, view: TranscriptView, console: Console
) -> tuple[list[Turn], list[Event]]:
    """All turns in one session, on one stream: when each began to be answered, and all that was streamed."""
    turns: list[Turn] = []
    streamed: list[Event] = []
    async with api.stream(session_id) as events:
        for text in _TURNS:
            console.print(Text(f"\n> {text}", style="bold"))
            sent_at = time.monotonic()
            await api.send(session_id, {"type": "user.message", "content": [{"type": "text", "text": text}]})
            turns.append(Turn(sent_at, await _one_turn(events, view, streamed)))
    return turns, streamed


async def _one_turn(
    events: AsyncIterator[Event], view: TranscriptView, streamed: list[Event]
) -> float | None:
    """Show a turn to its end; when the first piece of its text was here."""
    first_text_at: float | None = None
    async for event in events:
        if event["type"] == "event_delta" and first_text_at is None:
            first_text_at = time.monotonic()
        streamed.append(event)
        view.show(event)
        if event["type"] == "session.status_idle":
            return first_text_at
    raise Failure("The session's stream ended before the turn did.", "run the demo again.")


def _figures(console: Console, exchanges: list[Exchange], turns: list[Turn], streamed: list[Event]) -> None:
    console.print(Text("\nMeasured, for each model request:", style="bold"))
    for exchange in exchanges:
        console.print(
            f"  {_input(exchange.usage)}, {exchange.usage.get('output_tokens', 0):3d} out,"
            f" {exchange.tokens_a_second:5.1f} tokens/s, ended with {exchange.stop_reason}"
        )
    _turn_figures(console, exchanges, turns)
    deltas = sum(event["type"] == "event_delta" for event in streamed)
    pieces = sum(
        event.get("type") == "content_block_delta" for exchange in exchanges for event in exchange.events()
    )
    console.print(f"  {pieces} pieces of text sent by the provider, {deltas} previews received")


def _input(usage: dict[str, int]) -> str:
    if "input_tokens" not in usage:
        # llama.cpp leaves out the start of an answer, and with it the input's count, if the first character
        # takes more than one token.
        return "tokens in not told by the provider"
    cached = usage.get("cache_read_input_tokens", 0)
    return f"{usage['input_tokens'] + cached:4d} tokens in ({cached} from the cache)"


def _turn_figures(console: Console, exchanges: list[Exchange], turns: list[Turn]) -> None:
    console.print(
        Text("For each turn (the first waits for the server to import its model client):", style="bold")
    )
    for turn in turns:
        exchange = next((one for one in exchanges if one.asked_at >= turn.sent_at), None)
        if exchange is None or exchange.first_text_at is None or turn.first_text_at is None:
            continue
        whole = turn.first_text_at - turn.sent_at
        model = exchange.first_text_at - exchange.asked_at
        before, after = exchange.asked_at - turn.sent_at, turn.first_text_at - exchange.first_text_at
        console.print(
            f"  first token here after {whole * 1e3:.0f} ms: the model's {model * 1e3:.0f},"
            f" Corral's {before * 1e3:.0f} from the message to the request"
            f" and {after * 1e3:.0f} from the token to the client"
        )


def _verdict(console: Console, findings: list[Finding]) -> bool:
    console.print(Text("\nCompared with what the provider sent, character for character:", style="bold"))
    for finding in findings:
        mark, style = ("✓", "green") if finding.holds else ("✗", "bold red")
        console.print(Text(f"  {mark} {finding.claim}", style=style))
        if finding.detail:
            console.print(Text(f"     {finding.detail}"))
    holds = all(finding.holds for finding in findings)
    console.print(Text("\nNothing was lost." if holds else "\nSomething was lost.", style="bold"))
    return holds


if __name__ == "__main__":
    main()
