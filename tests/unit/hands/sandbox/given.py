"""Sandboxes for tests: real ones, on a workspace of the test's own."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corral.hands.sandbox.provider import Recipe, Sandbox, ToolOutput
from corral.hands.sandbox.select import provider_named


@dataclass(frozen=True)
class Said:
    """The text of a result and whether it was an error."""

    text: str
    is_error: bool


@dataclass(frozen=True)
class Hands:
    """A running sandbox and its workspace on the host."""

    sandbox: Sandbox
    workspace: Path

    async def call(self, name: str, **input: Any) -> Said:
        return said(await self.sandbox.execute(name, input))

    async def bash(self, command: str, **input: Any) -> Said:
        return await self.call("bash", command=command, **input)


def said(output: ToolOutput) -> Said:
    return Said(str(output.content[0]["text"]), output.is_error)


@asynccontextmanager
async def hands(folder: Path, provider: str = "bubblewrap", **changes: Any) -> AsyncGenerator[Hands]:
    """A sandbox on `folder`/workspace. changes: fields of the recipe."""
    recipe = replace(Recipe(session_id="test", workspace=folder / "workspace"), **changes)
    makes = provider_named(provider)
    try:
        yield Hands(await makes.provision(recipe), recipe.workspace)
    finally:
        await makes.close()
