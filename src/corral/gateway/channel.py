"""A two-way flow of bytes, plain or under TLS; TLS may lie within TLS, which asyncio's streams cannot do."""

import asyncio
import ssl
from typing import Final, Protocol, Self

_CHUNK: Final = 64 * 1024
_TLS_HANDSHAKE: Final = 0x16


class ChannelClosed(Exception):
    """The other side has broken the connection off, or is not speaking the protocol it should."""


class Channel(Protocol):
    """Reading and writing may go on at the same time, each in one task."""

    async def read(self) -> bytes:
        """Some bytes; none once the other side has ended. Raises `ChannelClosed`."""
        ...

    async def write(self, data: bytes) -> None:
        """Send; returns when there is room for more. Raises `ChannelClosed`."""
        ...

    async def close(self) -> None:
        """Break off what is left. Never raises."""
        ...

    def unread(self, data: bytes) -> None:
        """Put bytes back that the next read is to give."""
        ...

    @property
    def at_end(self) -> bool:
        """Whether it is known that nothing more will come."""
        ...


class StreamChannel:
    """A channel on asyncio's streams."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._before = b""

    async def read(self) -> bytes:
        """See `Channel`."""
        if self._before:
            data, self._before = self._before, b""
            return data
        try:
            return await self._reader.read(_CHUNK)
        except (OSError, ssl.SSLError) as error:
            raise ChannelClosed(str(error)) from error

    async def write(self, data: bytes) -> None:
        """See `Channel`."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except (OSError, RuntimeError) as error:
            raise ChannelClosed(str(error)) from error

    async def close(self) -> None:
        """See `Channel`."""
        self._writer.close()
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except (TimeoutError, OSError):
            self._writer.transport.abort()

    def unread(self, data: bytes) -> None:
        """See `Channel`."""
        self._before = data + self._before

    @property
    def at_end(self) -> bool:
        """See `Channel`."""
        return not self._before and (self._reader.at_eof() or self._writer.is_closing())


class TlsChannel:
    """TLS on another channel, from the side of the server. `close` closes the inner one as well."""

    def __init__(self, inner: Channel, context: ssl.SSLContext) -> None:
        self._inner = inner
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._before = b""

    @classmethod
    async def accept(cls, inner: Channel, context: ssl.SSLContext) -> Self:
        """Shake hands as a server. Raises `ChannelClosed` if the client does not agree."""
        channel = cls(inner, context)
        while True:
            try:
                channel._tls.do_handshake()
            except ssl.SSLWantReadError:
                await channel._flush()
                if not await channel._more():
                    raise ChannelClosed("the client left during the TLS handshake") from None
            except ssl.SSLError as error:
                await channel._flush()  # the alert that says why
                raise ChannelClosed(error.reason or "TLS handshake failed") from error
            else:
                await channel._flush()
                return channel

    async def read(self) -> bytes:
        """See `Channel`."""
        if self._before:
            data, self._before = self._before, b""
            return data
        while True:
            try:
                data = self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._more():
                    return b""
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise ChannelClosed(error.reason or "TLS failed") from error
            else:
                return data

    async def write(self, data: bytes) -> None:
        """See `Channel`."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise ChannelClosed(error.reason or "TLS failed") from error
        await self._flush()

    async def close(self) -> None:
        """See `Channel`."""
        try:
            async with asyncio.timeout(1.0):
                self._say_goodbye()
                await self._flush()
        except (ChannelClosed, TimeoutError, ssl.SSLError):
            pass  # the other side is gone
        await self._inner.close()

    def unread(self, data: bytes) -> None:
        """See `Channel`."""
        self._before = data + self._before

    @property
    def at_end(self) -> bool:
        """See `Channel`."""
        return not self._before and self._inner.at_end

    def _say_goodbye(self) -> None:
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            return  # ours is on its way; theirs is not waited for

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            # The inner write takes the bytes before it first waits, so their order is kept.
            await self._inner.write(data)

    async def _more(self) -> bool:
        data = await self._inner.read()
        if not data:
            self._incoming.write_eof()
            return False
        self._incoming.write(data)
        return True


async def starts_tls(channel: Channel) -> bool:
    """Whether the other side begins with a TLS handshake; what has been read of it is put back.

    Raises:
        ChannelClosed: it said nothing at all.
    """
    first = await channel.read()
    if not first:
        raise ChannelClosed("the client left without a word")
    channel.unread(first)
    return first[0] == _TLS_HANDSHAKE
