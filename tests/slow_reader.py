"""A client that asks and does not read, on a connection whose buffers are as small as the kernel allows."""

import array
import asyncio
import fcntl
import select
import socket
import termios

import httpx
import msgspec

from corral.server import listen
from tests.corral_server import Corral

_SMALL = 4096


def narrow_listener() -> socket.socket:
    """A listening socket whose connections hold next to nothing in the kernel on the server's side."""
    listener = listen("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL)
    return listener


class SlowReader:
    """One GET whose answer nobody reads, until somebody does. Close it with ``with``."""

    def __init__(self, corral: Corral, path: str) -> None:
        url = httpx.URL(corral.base_url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
        self._socket.connect((url.host, url.port))
        head = f"GET {path} HTTP/1.1\r\nhost: test\r\nx-api-key: {corral.api_key}\r\n\r\n"
        self._socket.sendall(head.encode())
        self._socket.setblocking(False)

    def __enter__(self) -> "SlowReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    async def began(self) -> None:
        """Returns once the answer has begun; nothing of it is taken."""
        async with asyncio.timeout(20):
            while not self._events() & select.POLLIN:
                await asyncio.sleep(0.01)

    async def is_full(self) -> None:
        """Returns once more has come than the head of the answer: nearly all that there is room for."""
        waiting = array.array("i", [0])
        async with asyncio.timeout(20):
            while waiting[0] < _SMALL // 4:
                await asyncio.sleep(0.01)
                fcntl.ioctl(self._socket, termios.FIONREAD, waiting)

    async def cut_off(self) -> None:
        """Returns once the server has given up on this client, which goes on not reading."""
        async with asyncio.timeout(20):
            while not self._events() & (select.POLLERR | select.POLLHUP):
                await asyncio.sleep(0.01)

    async def read(self, event: str) -> bytes:
        """At last, everything up to the end of the first event of type `event`."""
        loop = asyncio.get_running_loop()
        seen = bytearray()
        begins = -1
        async with asyncio.timeout(60):
            while begins < 0 or seen.find(b"\n\n", begins) < 0:
                piece = await loop.sock_recv(self._socket, 65536)
                assert piece, f"the server ended the answer without {event}"
                seen += piece
                if begins < 0:
                    begins = seen.find(b"event: " + event.encode(), max(0, len(seen) - len(piece) - 64))
        return bytes(seen)

    def _events(self) -> int:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return sum(event for _, event in poll.poll(0))


def data_of(stream: bytes) -> list[dict[str, object]]:
    """The events in the bytes of a chunked stream."""
    _, body = stream.split(b"\r\n\r\n", 1)
    text = bytearray()
    while body:
        size, _, rest = body.partition(b"\r\n")
        length = int(size, 16)
        text += rest[:length]
        if len(rest) < length:
            break
        body = rest[length + 2 :]
    return [
        msgspec.json.decode(line[6:])
        for line in bytes(text).split(b"\n")
        if line.startswith(b"data: ") and line.endswith(b"}")
    ]
