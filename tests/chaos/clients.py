"""Clients that never give up: each drives one session through its turns whatever dies meanwhile."""

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec


class ChaosClient:
    """An application on one session: sends a turn, waits for its end, sends the next."""

    def __init__(self, http: httpx.AsyncClient, session_id: str, name: str) -> None:
        self._http = http
        self.session_id = session_id
        self.name = name
        self.acknowledged: list[str] = []
        """Texts of the messages whose acceptance the server has confirmed."""
        self.stops: list[str] = []
        """How each turn ended."""

    async def turns(self, count: int, first: int = 0) -> None:
        """Drive `count` turns."""
        for number in range(first, first + count):
            await self._turn(number)

    async def _turn(self, number: int) -> None:
        token = f"{self.name}-{number}"
        script = msgspec.json.encode({"steps": self.steps(token), "run": token}).decode()
        text = f"turn {token}\nscript: {script}"
        await self._send(text)
        self.stops.append(await self._until_idle(text))

    def steps(self, token: str) -> list[dict[str, Any]]:
        """What the model plays in the turn of this name. Each call leaves a line that no other one does."""
        calls = [f"echo {token}-{call} >> ran.log; sleep 0.0{call}" for call in range(1, 4)]
        return [
            {"thinking": "hm", "text": "first", "tools": [_bash(calls[0]), _bash(calls[1])], "chunk_ms": 5},
            {"text": "then", "tools": [_bash(calls[2])], "delay_ms": 30},
            {"text": f"done {token}", "delay_ms": 30},
        ]

    async def _send(self, text: str) -> None:
        """Send once: after an answer that never came, look whether the message had arrived."""
        body = {"events": [{"type": "user.message", "content": [{"type": "text", "text": text}]}]}
        while True:
            try:
                answer = await self._http.post(f"/v1/sessions/{self.session_id}/events", json=body)
                if answer.is_success:
                    break
            except httpx.HTTPError:
                pass
            if any(_text(event) == text for event in await self.events(order="desc", limit=50)):
                break
        self.acknowledged.append(text)

    async def _until_idle(self, text: str) -> str:
        while True:
            for event in await self.events(order="desc", limit=50):
                if event["type"] == "session.status_idle":
                    if event["stop_reason"]["type"] != "requires_action":
                        return event["stop_reason"]["type"]
                    break
                if event["type"] == "session.status_running" or _text(event) == text:
                    break
            await asyncio.sleep(0.05)

    async def events(self, **query: Any) -> list[dict[str, Any]]:
        """A page of events, from whichever server process answers."""
        answer = await self.get(f"/v1/sessions/{self.session_id}/events", **query)
        return list(answer["data"])

    async def get(self, path: str, **query: Any) -> Mapping[str, Any]:
        """A GET that is repeated until it is answered."""
        while True:
            try:
                answer = await self._http.get(path, params=query)
                if answer.is_success:
                    return msgspec.json.decode(answer.content)
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)


def _bash(command: str) -> dict[str, Any]:
    return {"name": "bash", "input": {"command": command}}


def _text(event: Mapping[str, Any]) -> str | None:
    return event["content"][0]["text"] if event["type"] == "user.message" else None
