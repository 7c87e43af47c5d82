"""A session's files while its work item is served: uploads in, outputs out.

Outputs are collected by one task, so a large file is neither sent twice nor cut off because somebody has
waited for it long enough.
"""

import asyncio
from pathlib import Path
from typing import Final

import structlog

from corral.hands.worker.client import WorkApi
from corral.hands.worker.outputs import Outputs
from corral.hands.worker.pace import Pace
from corral.hands.worker.uploads import Uploads
from corral.hands.worker.workspaces import OUTPUTS_FOLDER, UPLOADS_FOLDER
from corral.wire.secret import Secret

_UPLOADS_RECORD: Final = "uploads.json"
_OUTPUTS_RECORD: Final = "outputs.json"

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class SessionFiles:
    """The files of one session. `share`: the folder that holds them, None where sandboxes cannot show any.

    Only for servers that are Corral: the endpoints are its own.
    """

    def __init__(self, api: WorkApi, share: Path | None, session_id: str, key: Secret, pace: Pace) -> None:
        self._session_id = session_id
        self._uploads: Uploads | None = None
        self._outputs: Outputs | None = None
        if share is not None:
            self._uploads = Uploads(
                api, share / UPLOADS_FOLDER, share / _UPLOADS_RECORD, session_id, key, pace
            )
            self._outputs = Outputs(api, share / OUTPUTS_FOLDER, share / _OUTPUTS_RECORD, session_id, key)
        self._wanted = asyncio.Event()
        self._next: asyncio.Future[None] | None = None
        self._warned = False

    async def bring(self, revision: str) -> None:
        """Bring the session's files as of a revision; see `Uploads.bring`."""
        if self._uploads is not None:
            await self._uploads.bring(revision)
        elif revision and not self._warned:
            self._warned = True
            _log.warning("this kind of sandbox cannot show a session's files", session_id=self._session_id)

    def note_limit(self, most: int | None) -> None:
        """Note the largest output that the server takes; larger ones are not even tried."""
        if self._outputs is not None:
            self._outputs.most = most

    async def run(self) -> None:
        """Collect outputs whenever it is asked for, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            asked, self._next = self._next, None
            await self.collect()
            if asked is not None:
                asked.set_result(None)

    def ask(self) -> asyncio.Future[None]:
        """Ask for a collection; the future is done when one that has begun later has ended."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._wanted.set()
        return self._next

    async def settled(self, seconds: float) -> None:
        """Ask for a collection and wait until it is done, at most so long; it goes on all the same."""
        if self._outputs is not None:
            _, late = await asyncio.wait([self.ask()], timeout=seconds)
            if late:
                _log.info("outputs are still on their way", session_id=self._session_id)

    async def collect(self) -> None:
        """Send new and changed outputs now."""
        if self._outputs is not None:
            await self._outputs.collect()
