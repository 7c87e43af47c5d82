"""The machine as a worker: polls, acknowledges, beats, begins calls, answers them, and loses its leases."""

from dataclasses import dataclass
from typing import Any

from tests.chaos.machine_world import World


@dataclass
class Hold:
    """A claimed work item; ``begun`` are the calls that were begun under this claim."""

    work_id: str
    environment_id: str
    token: str
    begun: set[str]


class MachineWorker:
    """Workers of both environments in one; it holds one item a session."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.held: dict[str, Hold] = {}
        self.stale: dict[str, str] = {}
        """The last token of each session that is good no more."""
        self.begun: dict[str, str] = {}
        """By whose token each call was begun first."""

    async def poll(self, kind: str, mine: set[str]) -> None:
        """Take every item on offer; those of sessions that are not `mine` are stopped."""
        key, path = self._world.pool_key, "/corral/v1/work/poll"
        if kind == "self_hosted":
            key = self._world.environment_key
            path = f"/v1/environments/{self._world.environments[kind]}/work/poll"
        while True:
            query = {"reclaim_older_than_ms": 0}
            headers = {"authorization": f"Bearer {key}"}
            answer = await self._world.http.get(path, params=query, headers=headers)
            assert answer.status_code == 200, answer.text
            item: dict[str, Any] | None = answer.json()
            if item is None:
                return
            session_id, work = item["data"]["id"], f"{self._path(item)}"
            if session_id not in mine:
                await self._world.post(f"{work}/stop", key=item["secret_token"], force=True)
                continue
            token = item["secret_token"]
            assert (await self._world.post(f"{work}/ack", key=token)).status_code == 200
            beat = await self._world.post(f"{work}/heartbeat?expected_last_heartbeat=NO_HEARTBEAT", key=token)
            assert beat.status_code == 200, beat.text
            self.drop(session_id)
            self.held[session_id] = Hold(item["id"], item["environment_id"], token, set())

    def _path(self, item: dict[str, Any]) -> str:
        item["secret_token"] = _token(item["secret"])
        return f"/v1/environments/{item['environment_id']}/work/{item['id']}"

    def drop(self, session_id: str) -> None:
        """Let go of a session's item; its token is remembered as one that should be good no more."""
        if (hold := self.held.pop(session_id, None)) is not None:
            self.stale[session_id] = hold.token

    async def may_run(self, session_id: str, call_id: str) -> bool:
        """Begin a call as Corral's worker does; False if somebody else had begun it, or it has its answer."""
        hold = self.held[session_id]
        path = f"/corral/v1/sessions/{session_id}/calls/{call_id}/begin"
        status = (await self._world.post(path, key=hold.token)).status_code
        assert status in (200, 401, 409), status
        if status != 200:
            return False
        first = self.begun.setdefault(call_id, hold.token)
        assert first == hold.token, "a call was begun by two claims"
        return True

    async def lose(self, session_id: str) -> None:
        """The worker falls silent, and its lease runs out by the database's clock."""
        await self._world.database.execute(
            "update work set lease_until = clock_timestamp() - interval '1 second'"
            " where session_id = %s and state in ('starting', 'active', 'stopping')",
            (session_id,),
        )
        self.drop(session_id)

    async def stop(self, session_id: str) -> None:
        """The worker gives its item back."""
        hold = self.held[session_id]
        path = f"/v1/environments/{hold.environment_id}/work/{hold.work_id}/stop"
        answer = await self._world.post(path, key=hold.token, force=True)
        assert answer.status_code in (200, 401, 404, 409), answer.text
        self.drop(session_id)


def _token(secret: str) -> str:
    import base64
    import json

    return json.loads(base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)))["sessions_token"]
