"""A chat with a person at a terminal: what is said, asked and done, one thing at a time.

Events of the session and what the person types meet in one queue, so that nothing has to be locked, and a
question is never asked about a state that has passed.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from corral.cli import chat_replies as replies
from corral.cli.api_client import ApiClient, Event
from corral.cli.chat_input import Face, Gesture, Input, Typed
from corral.cli.chat_standing import Standing
from corral.cli.failure import Failure
from corral.cli.printable import printable
from corral.cli.session_facts import OpenCall, usage_in_words
from corral.cli.session_feed import SessionFeed
from corral.cli.transcript_view import TranscriptView, View

HELP: Final = """\
Enter sends; Alt-Enter or Ctrl-J begins a new line. What you send while the agent works, it reads
at its next step.
  /interrupt    stop the agent (or Ctrl-C)
  /cost         what the session has used so far
  /session      the session's id, agent and model, and how to come back
  /error TEXT   answer a tool by hand: it failed, and why
  /quit         leave (or Ctrl-D, or Ctrl-C twice); a session at work goes on without you"""

_COMMAND: Final = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
_NO: Final = re.compile(r"(?:n|no)(?:[\s,.:]+(.*))?", re.DOTALL | re.IGNORECASE)
_SHOWN_EVENTS: Final = 80
_SHOWN_MESSAGES: Final = 2


class _Trouble(msgspec.Struct, frozen=True):
    why: str | None


class _Over(msgspec.Struct, frozen=True):
    failure: BaseException | None


class Conversation:
    """One chat, from the first prompt until the person leaves."""

    def __init__(
        self,
        api: ApiClient,
        session: dict[str, Any],
        *,
        new: bool,
        face: Callable[[Callable[[Input], None]], Face],
        view: View | None = None,
    ) -> None:
        self._api = api
        self._session = session
        self._id = str(session["id"])
        self._new = new
        self._inbox: asyncio.Queue[Event | list[Event] | Input | _Trouble | _Over] = asyncio.Queue()
        self._face = face(self._inbox.put_nowait)
        self._console = Console(file=self._face.file, highlight=False, soft_wrap=True)
        self._view: View = view or TranscriptView(self._console, messages=True, totals=True)
        self._standing = Standing(session["status"])
        self._own: set[str] = set()
        self._asked: str | None = None
        self._interrupting = self._leaving = False
        self._exit: int | None = None

    async def run(self) -> int:
        """Talk until the person leaves or the session ends; returns the exit status."""
        feeding = asyncio.create_task(self._feed())
        facing = asyncio.create_task(self._face.run())
        facing.add_done_callback(self._face_over)
        try:
            while self._exit is None:
                await self._take(await self._inbox.get())
            return self._exit
        finally:
            self._face.close()
            feeding.cancel()
            await asyncio.gather(feeding, facing, return_exceptions=True)

    def _face_over(self, facing: asyncio.Task[None]) -> None:
        if not facing.cancelled():
            self._inbox.put_nowait(_Over(facing.exception()))

    async def _feed(self) -> None:
        feed = SessionFeed(self._api, self._id, trouble=lambda why: self._inbox.put_nowait(_Trouble(why)))
        try:
            async with aclosing(feed.follow()) as following:
                async for news in following:
                    self._inbox.put_nowait(news)
        except Failure as failure:
            self._inbox.put_nowait(_Over(failure))

    async def _take(self, news: Event | list[Event] | Input | _Trouble | _Over) -> None:
        match news:
            case Typed():
                self._leaving = False
                await self._typed(news.text)
            case Gesture.INTERRUPT:
                await self._interrupt()
            case Gesture.LEAVE:
                self._leave()
            case list():
                self._begin(news)
            case _Trouble():
                self._tell(
                    "connected again" if news.why is None else f"connection lost, trying again: {news.why}"
                )
            case _Over():
                if news.failure is not None:
                    raise news.failure
            case dict():
                self._event(news)
        self._prompt()

    def _event(self, event: Event) -> None:
        self._standing.see(event)
        if event.get("id") not in self._own or event["type"] != "user.message":
            self._view.show(event)
        if event["type"] == "session.status_idle":
            self._interrupting = False
        if self._standing.ended:
            self._exit = 1

    def _begin(self, events: list[Event]) -> None:
        for event in events:
            self._standing.see(event)
        if self._new:
            self._tell(f"session {self._id} · {self._session['agent']['model']['id']} · /help")
            return
        self._tell(f"back in session {self._id} · {self._session['agent']['model']['id']} · /help")
        shown = _last_part(events)
        if len(shown) < len(events):
            self._tell(f"… earlier: corral session follow {self._id} --from-start")
        for event in shown:
            self._view.show(event)

    def _prompt(self) -> None:
        """Ask what there is to ask; a question about a call is shown once, with all that would run."""
        question = next(iter(self._standing.questions), None)
        if question is None:
            self._asked = None
            busy = self._standing.working or self._standing.needs_worker
            self._face.ask("❯ ", self._hint(), turn=not busy)
            return
        if question.id != self._asked:
            self._asked = question.id
            self._show(_question(question))
        if question.need == "approval":
            self._face.ask(
                "run it? [y/n] ❯ ",
                "y: run · n: deny · any other text: deny, and the agent reads it as the reason",
                turn=True,
            )
        else:
            self._face.ask(
                f"{printable(question.name)} ❯ ",
                "type its result, text or JSON · Alt-Enter: new line · /error TEXT: it failed",
                turn=True,
            )

    def _hint(self) -> str:
        if self._interrupting:
            return "interrupting … · Ctrl-C again leaves without waiting"
        if self._standing.working:
            return "at work · what you send is read at the next step · Ctrl-C interrupts"
        if self._standing.needs_worker:
            return "waiting for a worker of the environment · Ctrl-C interrupts"
        if self._leaving:
            return "Ctrl-C again leaves"
        return "Enter sends · Alt-Enter: new line · /help · Ctrl-C twice leaves"

    async def _typed(self, text: str) -> None:
        if not text.strip():
            return
        command = _COMMAND.fullmatch(text.strip())
        if command is not None and (await self._command(command[1], command[2]) or self._mistyped(command)):
            return
        question = next(iter(self._standing.questions), None)
        if question is None:
            await self._say(text)
        elif question.need == "answer":
            self._echo(Text("❯ ", "bold green").append(printable(text), "bold"))
            await self._settle(question, replies.answer(question, text))
        elif text.strip().lower() in ("y", "yes"):
            await self._settle(question, replies.allow(question))
        else:
            no = _NO.fullmatch(text.strip())
            await self._settle(question, replies.deny(question, no[1] if no else text.strip()))

    def _mistyped(self, command: re.Match[str]) -> bool:
        """Whether this looks like a command and is none; a path is taken for text."""
        if command[2] is not None or self._standing.questions:
            return False
        self._tell(f"There is no command /{command[1]}.\n{HELP}")
        return True

    async def _command(self, name: str, argument: str | None) -> bool:
        match name:
            case "help":
                self._tell(HELP)
            case "quit" | "exit":
                self._leave()
            case "interrupt":
                await self._interrupt(by_command=True)
            case "cost":
                await self._cost()
            case "session":
                self._describe()
            case "error":
                question = next(iter(self._standing.questions), None)
                if question is None or question.need != "answer":
                    self._tell("/error answers a tool call that waits for you; none does.")
                else:
                    await self._settle(
                        question, replies.answer(question, argument or "It failed.", is_error=True)
                    )
            case _:
                return False
        return True

    async def _say(self, text: str) -> None:
        if isinstance(self._view, TranscriptView):
            self._view.sent()
        taken = await self._send(replies.message(text))
        if not taken:
            self._tell("Not sent. The text was:\n" + printable(text))
            return
        self._own.update(event["id"] for event in taken)
        line = Text("❯ ", "bold green").append(printable(text), "bold")
        if self._standing.working:
            line.append("  (read at the next step)", "dim not bold")
        self._echo(line)
        self._standing.working = True

    async def _settle(self, question: OpenCall, reply: dict[str, Any]) -> None:
        self._standing.settle(question)
        if not await self._send(reply):
            self._standing.reopen(question)
            self._asked = None
        elif not self._standing.questions:
            self._standing.working = True

    async def _send(self, event: dict[str, Any]) -> list[Event]:
        try:
            return await self._api.send(self._id, event)
        except Failure as failure:
            self._show(Text(printable(failure.message), "red"))
            return []

    async def _interrupt(self, *, by_command: bool = False) -> None:
        standing = self._standing
        if standing.working or standing.questions or standing.needs_worker:
            if self._interrupting and not by_command:
                self._leave()
            elif await self._send(replies.interrupt()):
                self._interrupting = True
        elif by_command:
            self._tell("The agent is not at work.")
        elif self._leaving:
            self._leave()
        else:
            self._leaving = True

    def _leave(self) -> None:
        going_on = f"; it goes on by itself (corral session stop {self._id} ends that)"
        self._tell(
            f"Left session {self._id}{going_on if self._standing.working else ''}.\n"
            f"To come back: corral chat --session {self._id}"
        )
        self._exit = 0

    async def _cost(self) -> None:
        try:
            self._session = await self._api.get(f"/v1/sessions/{self._id}")
        except Failure as failure:
            self._show(Text(printable(failure.message), "red"))
            return
        self._tell(usage_in_words(self._session["usage"]))

    def _describe(self) -> None:
        agent = self._session["agent"]
        self._tell(
            f"session      {self._id}\n"
            f"agent        {agent['name']} ({agent['id']}, version {agent['version']})\n"
            f"model        {agent['model']['id']}\n"
            f"environment  {self._session['environment_id']}\n"
            f"come back    corral chat --session {self._id}"
        )

    def _tell(self, text: str) -> None:
        self._show(Text(text, "dim"))

    def _echo(self, typed: Text) -> None:
        if not self._face.echoes or self._standing.working:
            self._show(typed)

    def _show(self, text: Text) -> None:
        """Print whole lines, even in the middle of a message that is streaming."""
        with self._console.capture() as captured:
            self._console.print(text)
        self._face.echo(captured.get().rstrip("\n"))


def _question(call: OpenCall) -> Text:
    """All that would run: nothing shortened, nothing hidden."""
    asks = "asks to run" if call.need == "approval" else "asks you for the result of"
    text = Text("? ", "bold magenta").append(f"The agent {asks} {printable(call.name)}:", "bold")
    command = call.input.get("command")
    if isinstance(command, str) and len(call.input) == 1:
        shown = command
    else:
        shown = msgspec.json.format(msgspec.json.encode(call.input), indent=2).decode()
    for line in printable(shown).split("\n"):
        text.append(f"\n    {line}")
    return text


def _last_part(events: list[Event]) -> list[Event]:
    """From the last messages on, but not more than fits the eye."""
    said = [n for n, event in enumerate(events) if event["type"] == "user.message" and event["processed_at"]]
    start = said[-_SHOWN_MESSAGES] if len(said) >= _SHOWN_MESSAGES else 0
    return events[max(start, len(events) - _SHOWN_EVENTS) :]
