"""`corral chat`: a session in the terminal."""

import os
import sys
from collections.abc import Sequence

import click
from rich.console import Console
from rich.text import Text

from corral.cli.api_client import ApiClient
from corral.cli.chat_start import MODEL, Wanted, begin
from corral.cli.connection import Asked, Connection, connection_options
from corral.cli.failure import Failure
from corral.cli.options import json_option
from corral.cli.printable import printable
from corral.cli.running import run_briefly


@click.command()
@click.option(
    "--agent", metavar="ID", help="Agent of the new session.  [default: one with all tools, named chat]"
)
@click.option("--session", metavar="ID", help="Come back to this session instead of starting one.")
@click.option(
    "--model", metavar="ID", help=f"Model, by its Claude API id.  [default: the agent's, or {MODEL}]"
)
@click.option("--system", metavar="TEXT", help="System prompt.  [default: the agent's, or none]")
@click.option("--environment", metavar="ID", help="Where its tools run.  [default: the one named `default`]")
@click.option(
    "--ask", is_flag=True, help="Ask before each tool call; the agent's tools become the built-in ones."
)
@click.option("--yes", is_flag=True, help="With piped input: allow every call that waits for approval.")
@click.option(
    "--lines", is_flag=True, help="With piped input: each line is a message, said after the turn before."
)
@json_option
@connection_options
def chat(
    agent: str | None,
    session: str | None,
    model: str | None,
    system: str | None,
    environment: str | None,
    ask: bool,
    yes: bool,
    lines: bool,
    as_json: bool,
    asked: Asked,
) -> None:
    """Talk with an agent in the terminal.

    Its words, tool calls and results appear as they come. You are asked before a call that needs approval,
    and for the results of custom tools. What you type while it works reaches it at its next step. Ctrl-C
    interrupts it; at an idle prompt, twice, it leaves. The session stays: --session comes back to it.

    With piped input all of it is one message (--lines: each line is one). The command ends with the turn;
    its status is 0 unless a turn died. Calls that wait for approval are denied then, unless --yes is given.
    --json prints each event of the session as a line of JSON, once it is in the log.

    \b
    Example:
      corral chat
      corral chat --session sesn_01ABC
      echo "List the files here." | corral chat --yes
    """
    wanted = Wanted(
        agent=agent, session=session, model=model, system=system, environment=environment, ask=ask
    )
    wanted.check()
    connection = asked.connection()
    if sys.stdin.isatty():
        if yes or lines:
            raise click.UsageError("--yes and --lines are for piped input; here, somebody is asked.")
        sys.exit(run_briefly(_talk(connection, wanted, as_json)))
    messages = _messages(sys.stdin.buffer.read().decode("utf-8", "replace"), lines)
    sys.exit(run_briefly(_errand(connection, wanted, messages, yes, as_json)))


def _messages(text: str, lines: bool) -> Sequence[str]:
    messages = [line for line in text.splitlines() if line.strip()] if lines else [text.strip()]
    if not any(messages):
        raise Failure(
            "There is nothing to say: the input is empty.",
            "pipe a message in, or run `corral chat` in a terminal to type.",
        )
    return messages


async def _talk(connection: Connection, wanted: Wanted, as_json: bool) -> int:
    from corral.cli.chat_conversation import Conversation
    from corral.cli.chat_input import PlainLines
    from corral.cli.transcript_view import JsonView

    async with ApiClient(connection.base_url, connection.api_key) as api:
        session, new = await begin(api, connection, wanted)
        if as_json or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
            view = JsonView() if as_json else None
            talk = Conversation(
                api, session, new=new, face=lambda hear: PlainLines(hear, sys.stdout), view=view
            )
        else:
            from corral.cli.chat_terminal import Terminal

            talk = Conversation(api, session, new=new, face=Terminal)
        return await talk.run()


async def _errand(
    connection: Connection, wanted: Wanted, messages: Sequence[str], allow: bool, as_json: bool
) -> int:
    from corral.cli.chat_piped import Errand
    from corral.cli.transcript_view import JsonView, TranscriptView

    err = Console(stderr=True, highlight=False, soft_wrap=True)

    def trouble(why: str | None) -> None:
        said = "connected again" if why is None else f"connection lost, trying again: {why}"
        err.print(Text(printable(said), "yellow"))

    async with ApiClient(connection.base_url, connection.api_key) as api:
        session, _ = await begin(api, connection, wanted)
        err.print(Text(f"session {session['id']}", "dim"))
        view = (
            JsonView() if as_json else TranscriptView(Console(highlight=False, soft_wrap=True), totals=True)
        )
        return await Errand(api, session, messages, view, allow=allow).run(trouble)
