"""`corral session follow`: a transcript as it happens."""

from contextlib import aclosing

import click
from rich.console import Console

from corral.cli.api_client import ApiClient
from corral.cli.session_feed import SessionFeed, require
from corral.cli.transcript_view import JsonView, TranscriptView, View


async def follow_session(api: ApiClient, session_id: str, *, from_start: bool, as_json: bool) -> None:
    """Print the events of a session until it ends; with ``from_start`` those before as well.

    Raises:
        Failure: there is no such session, or the server cannot be reached to begin with.
    """
    await require(api, session_id)
    console = Console(highlight=False, soft_wrap=True)
    view: View = JsonView() if as_json else TranscriptView(console, messages=True, totals=True)
    feed = SessionFeed(api, session_id, trouble=_trouble)
    async with aclosing(feed.follow(whole=from_start)) as following:
        async for news in following:
            if isinstance(news, list):
                if not from_start:
                    click.echo(f"Following {session_id}; Ctrl-C ends this, not the session.", err=True)
                for event in news if from_start else ():
                    view.show(event)
            else:
                view.show(news)


def _trouble(why: str | None) -> None:
    click.echo("connected again" if why is None else f"connection lost, trying again: {why}", err=True)
