"""Turns an exception into what a person at a terminal needs: what happened, and what to do."""

from typing import IO, Any, Final

import click

CANNOT_SANDBOX: Final = 78
"""Exit status of a worker without a working sandbox (sysexits' EX_CONFIG): starting it again cannot help."""


CANNOT_OPEN: Final = 78
"""Exit status of a gateway without the right keys: starting it again cannot help either."""


class Failure(click.ClickException):
    """Ends the command with a message; the second line, if there is one, says what to do."""

    def __init__(self, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice = advice

    def show(self, file: IO[Any] | None = None) -> None:
        """Print both lines to standard error."""
        click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(self.message, err=True)
        if self.advice is not None:
            click.echo(f"What to do: {self.advice}", err=True)


class NoSandbox(Failure):
    """Ends a worker that has no working sandbox."""

    exit_code = CANNOT_SANDBOX


class WrongKeys(Failure):
    """Ends a gateway that does not have the vault's keys."""

    exit_code = CANNOT_OPEN


def explained(error: Exception) -> Exception:
    """The `Failure` for an error that can be expected; any other error as it is."""
    import psycopg

    from corral.hands.sandbox.provider import SandboxUnavailable
    from corral.hands.worker import WorkerError
    from corral.policy.loading import PolicyError
    from corral.policy.scoring import CasesError
    from corral.settings import SettingsError
    from corral.store.binaries import PostgresError
    from corral.wire.errors import ApiError

    match error:
        case SettingsError():
            return Failure(str(error), "correct them; docs/settings.md lists every setting.")
        case PolicyError():
            return Failure(str(error), "correct the file; docs/policies.md explains each field.")
        case CasesError():
            return Failure(str(error))
        case PostgresError() | ApiError() | WorkerError():
            return Failure(str(error))
        case SandboxUnavailable():
            return NoSandbox(str(error))
        case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedColumn():
            return Failure(
                f"The database lacks Corral's tables, or has those of an older version: {_first_line(error)}",
                "run `corral admin migrate`.",
            )
        case psycopg.OperationalError():
            return Failure(
                f"The database cannot be reached: {_first_line(error)}",
                "check CORRAL_STORE__URL and that PostgreSQL is running; `corral doctor` looks closer.",
            )
        case _:
            return error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
