"""Environment keys: the one credential that the public API does not hand out."""

import asyncio
import shlex
from collections.abc import Sequence
from typing import Protocol


class NoKey(Exception):
    """The command that makes environment keys failed."""


class EnvironmentKeys(Protocol):
    """Makes a key for an environment's workers."""

    async def key(self, environment_id: str) -> str | None:
        """A fresh key; None if the API key has to do."""
        ...


class ApiKeyInstead:
    """For servers that know no environment keys: the worker's calls are made with the API key."""

    async def key(self, environment_id: str) -> str | None:
        """None, whatever the environment."""
        return None


class KeysByCommand:
    """Runs a command for each key: ``{environment}`` in it stands for the id, its output is the key."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    @classmethod
    def of_line(cls, line: str) -> "KeysByCommand":
        """From a command line, as a shell would split it."""
        return cls(shlex.split(line))

    async def key(self, environment_id: str) -> str | None:
        """What the command prints.

        Raises:
            NoKey: it fails or prints nothing.
        """
        command = [part.replace("{environment}", environment_id) for part in self._command]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        if process.returncode != 0 or not out.strip():
            raise NoKey(f"{shlex.join(command)} made no key: {err.decode(errors='replace').strip()[-500:]}")
        return out.decode().split()[-1]
