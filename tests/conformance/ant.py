"""What `ant beta:worker` says on the wire, request for request, for want of the program itself.

The requests follow the public source of the command (1.20.0) and of the Go library beneath it (1.60.0):
methods, paths, the order of query parameters, headers, bodies, and which request waits for which. `poll`
claims items and runs a script for each; `run`, which such a script ends in, serves one item. Only the tools
are a stand-in: bash, one command at a time.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

Script = Callable[[Mapping[str, str], bytes], Awaitable[None]]
"""What `--on-work` runs: the variables it gets, and the item on its standard input."""

HEADERS = {
    "Accept": "application/json",
    "User-Agent": "Anthropic/Go 1.60.0",
    "X-Stainless-Lang": "go",
    "X-Stainless-Package-Version": "1.60.0",
    "X-Stainless-OS": "Linux",
    "X-Stainless-Arch": "x64",
    "X-Stainless-Runtime": "go",
    "X-Stainless-Runtime-Version": "go1.24.0",
    "X-Stainless-Retry-Count": "0",
    "Anthropic-Version": "2023-06-01",
    "Anthropic-Beta": "managed-agents-2026-04-01",
    "Accept-Encoding": "gzip",
}


@dataclass
class Ant:
    """The command on one host: its connection, its environment's key, and what it was answered."""

    http: httpx.AsyncClient
    environment_id: str
    key: str
    workdir: Path
    answers: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def asks(
        self,
        method: str,
        path: str,
        *,
        helper: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """One request; a body is sent as JSON, and no body as none."""
        sent = self._headers(helper, headers)
        if body is not None:
            sent["Content-Type"] = "application/json"
        content = None if body is None else msgspec.json.encode(body)
        response = await self.http.request(method, path, headers=sent, content=content)
        await self._note(method, path, response.status_code)
        return response

    async def until(self, end: str, status: int | None = None) -> None:
        """Wait for an answer (with this status) to a request whose path, without query, ends like this."""

        def there() -> bool:
            answered = self.statuses(end)
            return bool(answered) if status is None else status in answered

        async with asyncio.timeout(20), self.heard:
            await self.heard.wait_for(there)

    def statuses(self, end: str) -> list[int]:
        """The statuses of the requests whose path, without the query, ends like this."""
        return [status for _, path, status in self.answers if path.partition("?")[0].endswith(end)]

    async def poll(self, script: Script | None, *, items: int) -> None:
        """`ant beta:worker poll`, with `--on-work` or serving by itself, for so many items."""
        base = f"/v1/environments/{self.environment_id}/work"
        helper = "environments-work-poller"
        while items:
            polled = await self.asks(
                "GET",
                f"{base}/poll?beta=true&block_ms=999",
                helper=helper,
                headers={"Anthropic-Worker-Id": "host-0123456789abcdef"},
            )
            assert polled.status_code == 200, polled.text
            item = polled.json()
            if item is None or not item["id"]:
                continue
            acked = await self.asks("POST", f"{base}/{item['id']}/ack?beta=true", helper=helper)
            assert acked.status_code == 200, acked.text
            given = {
                "ANTHROPIC_WORK_ID": item["id"],
                "ANTHROPIC_ENVIRONMENT_ID": item["environment_id"],
                "ANTHROPIC_SESSION_ID": item["data"]["id"],
                "ANTHROPIC_ENVIRONMENT_KEY": self.key,
            }
            await (self.run(given) if script is None else script(given, polled.content))
            # Whoever has served it: 409 where that one has stopped it already.
            await self.asks("POST", f"{base}/{item['id']}/stop?beta=true", helper=helper, body={})
            items -= 1

    async def run(self, given: Mapping[str, str]) -> None:
        """`ant beta:worker run`: serve one item until its session has ended its turn."""
        session = given["ANTHROPIC_SESSION_ID"]
        work = f"/v1/environments/{given['ANTHROPIC_ENVIRONMENT_ID']}/work/{given['ANTHROPIC_WORK_ID']}"
        beating = asyncio.create_task(self._beat(work))
        # Nothing waits for the first heartbeat, which goes out first; here its answer comes first as well.
        await self.until("/heartbeat")
        serving = asyncio.create_task(self._serve(session))
        # The heartbeat's end ends the serving, and the other way round.
        await asyncio.wait({serving, beating}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, beating):
            task.cancel()
        for ended in await asyncio.gather(serving, beating, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        helper = "environments-worker"
        await self.asks("POST", f"{work}/stop?beta=true", helper=helper, body={"force": True})

    async def _beat(self, work: str) -> None:
        last = "NO_HEARTBEAT"
        while True:
            expected = httpx.QueryParams({"expected_last_heartbeat": last})
            path = f"{work}/heartbeat?beta=true&{expected}"
            beat = await self.asks("POST", path, helper="environments-worker")
            if beat.status_code != 200:
                return
            answer = beat.json()
            if answer["state"] in ("stopping", "stopped") or not answer["lease_extended"]:
                return
            last = answer["last_heartbeat"]
            # 30 s or half the lease with the real one; here as soon as anything else has been answered.
            async with self.heard:
                await self.heard.wait()

    async def _serve(self, session: str) -> None:
        path = f"/v1/sessions/{session}"
        shown = await self.asks("GET", f"{path}?beta=true", helper="environments-worker")
        assert shown.status_code == 200, shown.text
        assert shown.json()["agent"]["skills"] == []
        async with self._stream(path) as events:
            history = await self._history(path)
            answered = {event.get("tool_use_id") for event in history if event["type"] == "user.tool_result"}
            uses = [event for event in history if event["type"] == "agent.tool_use"]
            for use in uses:
                if use["id"] not in answered:
                    await self._execute(path, use)
            if history and ends_turn(history[-1]):
                return
            seen = {use["id"] for use in uses}
            async for event in events:
                if event["type"] == "agent.tool_use" and event["id"] not in seen:
                    await self._execute(path, event)
                if ends_turn(event) or event["type"] in ("session.status_terminated", "session.deleted"):
                    return

    async def _history(self, path: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        page = ""
        while True:
            asked = f"{path}/events?beta=true&limit=1000&order=asc{page}"
            listed = (await self.asks("GET", asked, helper="session-tool-runner")).json()
            events += listed["data"]
            if not listed["next_page"]:
                return events
            page = f"&{httpx.QueryParams({'page': listed['next_page']})}"

    async def _execute(self, path: str, use: dict[str, Any]) -> None:
        process = await asyncio.create_subprocess_exec(
            *("/bin/bash", "-c", use["input"]["command"]),
            cwd=self.workdir,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        text = output.decode().rstrip("\n") or "(no output)"
        result = {
            "tool_use_id": use["id"],
            "type": "user.tool_result",
            "content": [{"text": text, "type": "text"}],
            "is_error": False,
        }
        sent = await self.asks(
            "POST", f"{path}/events?beta=true", helper="session-tool-runner", body={"events": [result]}
        )
        assert sent.status_code == 200, sent.text

    @asynccontextmanager
    async def _stream(self, path: str) -> AsyncGenerator[AsyncIterator[dict[str, Any]]]:
        asked = f"{path}/events/stream?beta=true"
        headers = self._headers("session-tool-runner")
        async with self.http.stream("GET", asked, headers=headers, timeout=None) as response:
            await self._note("GET", asked, response.status_code)
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            events = frames(response)
            async with contextlib.aclosing(events):
                yield events

    async def _note(self, method: str, path: str, status: int) -> None:
        async with self.heard:
            self.answers.append((method, path, status))
            self.heard.notify_all()

    def _headers(self, helper: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        bearer = {"Authorization": f"Bearer {self.key}", "X-Stainless-Helper": helper}
        return {**HEADERS, **bearer, **(more or {})}


def ends_turn(event: Mapping[str, Any]) -> bool:
    """The one stop reason at which this version's idle time begins."""
    return event["type"] == "session.status_idle" and event["stop_reason"]["type"] == "end_turn"


async def frames(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """The events of a stream as the library decodes them; pings are none."""
    name, data = "", ""
    async for line in response.aiter_lines():
        if not line:
            if data and name != "ping":
                yield msgspec.json.decode(data)
            name, data = "", ""
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
