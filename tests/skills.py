"""Skills for tests: folders of a few files, uploaded through the official SDK."""

from collections.abc import Mapping
from typing import Any

from anthropic import AsyncAnthropic

SCRIPT = b"#!/bin/sh\necho hello from a skill\n"


def skill_files(
    name: str, more: Mapping[str, bytes] | None = None, *, description: str = "Greets people."
) -> list[tuple[str, bytes]]:
    """The files of a valid skill."""
    told = f"---\nname: {name}\ndescription: {description}\n---\n\nRun scripts/greet.sh.\n"
    others = more if more is not None else {"scripts/greet.sh": SCRIPT}
    return [
        (f"{name}/SKILL.md", told.encode()),
        *((f"{name}/{path}", content) for path, content in others.items()),
    ]


async def upload_skill(client: AsyncAnthropic, name: str, **fields: Any) -> str:
    """A fresh skill's id."""
    return (await client.beta.skills.create(files=skill_files(name, **fields))).id


def attached(*ids: str) -> list[dict[str, Any]]:
    """What an agent's `skills` are to be."""
    return [{"type": "custom", "skill_id": skill_id} for skill_id in ids]
