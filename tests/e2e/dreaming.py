"""What tests of dreams have in common: a store with something in it, sessions to learn from, and waiting."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.corral_server import MODEL, Corral, SessionUnderTest

PATIENCE = 60.0
ENDED = ("completed", "failed", "canceled")


def call(name: str, **given: Any) -> dict[str, Any]:
    """A tool call as a script has it."""
    return {"name": name, "input": given}


def playing(script: list[dict[str, Any]], guidance: str = "Mind the code style.") -> str:
    """Instructions by which the scripted model plays a script."""
    return f"{guidance}\nscript: {msgspec.json.encode(script).decode()}"


@dataclass(frozen=True)
class Dreamer:
    """Makes dreams on a server, over a store of two memories and a session in which something was said."""

    corral: Corral
    store_id: str
    session_ids: list[str]

    @classmethod
    async def on(cls, corral: Corral, **memories: str) -> "Dreamer":
        """With a store of these memories (or two) and one session."""
        store = await corral.client.beta.memory_stores.create(
            name="Team notes", description="What we agreed on."
        )
        for name, content in (memories or {"tabs": "Use tabs.", "indent": "Use blanks."}).items():
            await corral.client.beta.memory_stores.memories.create(
                store.id, path=f"/{name}.md", content=content
            )
        session = await corral.session()
        await session.says("We use blanks now, since Monday.", script=[{"text": "I will remember: blanks."}])
        await session.idle()
        return cls(corral, store.id, [session.id])

    async def dream(self, script: list[dict[str, Any]], **fields: Any) -> Any:
        """A fresh dream whose model plays a script."""
        inputs: Any = [
            {"type": "memory_store", "memory_store_id": self.store_id},
            {"type": "sessions", "session_ids": self.session_ids},
        ]
        dreams: Any = self.corral.client.beta.dreams
        return await dreams.create(inputs=inputs, model=MODEL, **{"instructions": playing(script), **fields})

    async def updating(self, script: list[dict[str, Any]]) -> Any:
        """A fresh dream that writes into its input."""
        behavior: Any = {"type": "update_existing", "memory_store_id": self.store_id}
        return await self.dream(script, output_behavior=behavior)

    async def contents(self, store_id: str | None = None) -> dict[str, str | None]:
        """The memories of a store by path; of the input store unless told otherwise."""
        listed = self.corral.client.beta.memory_stores.memories.list(store_id or self.store_id, view="full")
        return {memory.path: memory.content async for memory in listed if memory.type == "memory"}


async def until(corral: Corral, dream_id: str, *statuses: str) -> Any:
    """The dream, once it has one of these statuses, or has ended."""
    wanted = f"status in ({', '.join(repr(status) for status in (*statuses, *ENDED))})"
    await reached(corral, dream_id, wanted)
    return await corral.client.beta.dreams.retrieve(dream_id)


async def stopped(corral: Corral, dream_id: str) -> Any:
    """The dream, once nothing of it can act any more."""
    await reached(corral, dream_id, "stopped_at is not null")
    return await corral.client.beta.dreams.retrieve(dream_id)


async def reached(corral: Corral, dream_id: str, condition: str) -> None:
    """Return once a condition holds for the row of a dream; whatever changes it makes the bus speak."""
    connection = await corral.database.dedicated()
    try:
        async with asyncio.timeout(PATIENCE):
            await connection.execute("listen corral")
            while True:
                query: Any = f"select 1 from dreams where id = %s and {condition}"
                row = await (await connection.execute(query, (dream_id,))).fetchone()
                if row is not None:
                    return
                async for _ in connection.notifies(timeout=0.5, stop_after=1):
                    break
    finally:
        await connection.close()


def session_of(corral: Corral, dream: Any) -> SessionUnderTest:
    """The session of a dream that has begun."""
    assert dream.session_id is not None
    return SessionUnderTest(corral, dream.session_id)


async def results(corral: Corral, dream: Any) -> list[str]:
    """What the agent of a dream was told by its tools, in order."""
    events = await session_of(corral, dream).events()
    return [event.content[0].text for event in events if event.type == "user.custom_tool_result"]
