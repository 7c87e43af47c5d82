"""An answer of stored bytes, as a file to be saved and never a page to be shown."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import quote

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send


class Download:
    """A response that streams ``pieces``; what ``stack`` holds open is closed when it is through."""

    def __init__(
        self,
        stack: AsyncExitStack,
        pieces: AsyncIterator[bytes],
        *,
        size: int,
        media_type: str,
        filename: str,
    ) -> None:
        self._stack = stack
        self._response = StreamingResponse(
            pieces,
            media_type=media_type,
            headers={
                "content-length": str(size),
                "content-disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
                "x-content-type-options": "nosniff",
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._stack:
            await self._response(scope, receive, send)
