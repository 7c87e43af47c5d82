"""The `corral` command: a module per command, read when that command is called. No rules of the service.

`corral --help` must answer at once, so this module imports click alone, and what a command needs is imported
inside it.
"""

from importlib import import_module
from typing import Any, Final, NamedTuple

import click

from corral import __version__


class _Command(NamedTuple):
    module: str
    help: str


_COMMANDS: Final[dict[str, _Command]] = {
    "demo": _Command("demo", "An agent repairs a real repository in a sandbox, before your eyes."),
    "up": _Command("up", "Everything on one machine: database, server, worker."),
    "chat": _Command("chat", "A session in the terminal."),
    "session": _Command("session", "See sessions, follow, stop, copy and verify them, put them away."),
    "serve": _Command("serve", "A server on an existing database."),
    "worker": _Command("worker", "Runs agents' tools in sandboxes."),
    "gateway": _Command("gateway", "Opens secrets, speaks to MCP servers."),
    "admin": _Command("admin", "Environments, keys, schema."),
    "policy": _Command("policy", "Which tool calls may run: checks, tries and measures the rules."),
    "doctor": _Command("doctor", "Checks this installation and says what to do."),
    "model": _Command("model", "A scripted model for demonstrations and tests."),
}


class CommandLine(click.Group):
    """A group whose commands are imported when they are called, and whose errors say what to do."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands' names, in the order of their use."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = getattr(import_module(f"corral.cli.{entry.module}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what was expected to go wrong becomes a message instead of a traceback."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from corral.cli.failure import explained

            raise explained(error) from error


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="corral %(version)s")
def main() -> None:
    """Corral runs AI agents inside your own fence.

    \b
    Example:
      corral up                 # everything on this machine, until Ctrl-C
      corral demo               # watch an agent work
      corral COMMAND --help     # what a command does, with an example
    """
