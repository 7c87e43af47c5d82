"""The connection by which a sandbox's requests go on: to a checked address, and kept for the next request."""

import asyncio
import ssl

from corral.gateway.addresses import Pinned
from corral.gateway.channel import StreamChannel
from corral.gateway.egress_clearance import Cleared, House
from corral.gateway.http_sides import Outgoing, UpstreamFailed
from corral.gateway.policy import Target


class UpstreamConnection:
    """At most one connection at a time. `drop` it in the end."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._kept: tuple[Target, Pinned, Outgoing] | None = None

    async def to(self, cleared: Cleared) -> Outgoing:
        """A connection to the target: the one that is open if it leads to an address that is still good.

        Raises:
            UpstreamFailed: no address of the host can be connected to.
        """
        kept = self._kept
        if kept is not None:
            if kept[0] == cleared.target and kept[1] in cleared.pinned and kept[2].idle:
                return kept[2]
            await self.drop()
        reason: Exception | None = None
        for pinned in cleared.pinned:
            try:
                channel = await self._dial(cleared, pinned)
            except (OSError, TimeoutError, ssl.SSLError) as error:
                reason = error
                continue
            outgoing = Outgoing(channel, self._house.times)
            self._kept = (cleared.target, pinned, outgoing)
            return outgoing
        raise UpstreamFailed(_why(reason)) from reason

    async def drop(self) -> None:
        """Close what is open."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept[2].close()

    async def _dial(self, cleared: Cleared, pinned: Pinned) -> StreamChannel:
        context = None
        if cleared.target.scheme == "https":
            context = self._house.internal if pinned.is_internal else self._house.public
        async with asyncio.timeout(self._house.times.connect):
            reader, writer = await asyncio.open_connection(
                pinned.address,
                pinned.port,
                ssl=context,
                server_hostname=cleared.target.host if context is not None else None,
                limit=64 * 1024,
            )
        return StreamChannel(reader, writer)


def _why(error: Exception | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return "it cannot be connected to in time"
    return f"it cannot be connected to: {getattr(error, 'strerror', None) or error}"
