"""Carries the connections of the sandbox's way out, once there is one; see module `forward`.

One thread serves all connections; a connection whose other end is slow waits, and holds up no other.
"""

from __future__ import annotations

import selectors
import socket

_CHUNK_BYTES = 64 * 1024
_CONNECTIONS = 512


class _End:
    """One end of a connection: what has been read from it waits in `data` until the other end takes it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""
        self.ended = False
        self.told = False
        self.other: _End | None = None


class Forwarding:
    """Takes what comes to a listening socket on to the Unix socket at `path`."""

    def __init__(self, path: str, listener: int) -> None:
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(fileno=listener)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._open = 0

    def run(self) -> None:
        """Serve, for ever."""
        while True:
            for key, ready in self._selector.select():
                end = key.data
                if end is None:
                    self._accept()
                elif end.sock.fileno() >= 0:  # the other end may have closed both a moment ago
                    self._serve(end, ready)

    def _accept(self) -> None:
        try:
            inner, _ = self._listener.accept()
        except OSError:  # the client left, or there are no descriptors
            return
        outer = socket.socket(socket.AF_UNIX)
        try:
            if self._open >= _CONNECTIONS:
                raise OSError("too many connections")
            outer.setblocking(False)
            # A full backlog is an error at once: the worker is gone, or will not keep up.
            outer.connect(self._path)
        except OSError:
            inner.close()
            outer.close()
            return
        inner.setblocking(False)
        near, far = _End(inner), _End(outer)
        near.other, far.other = far, near
        self._open += 1
        for end in (near, far):
            self._selector.register(end.sock, selectors.EVENT_READ, end)

    def _serve(self, end: _End, ready: int) -> None:
        other = end.other
        assert other is not None
        try:
            if ready & selectors.EVENT_READ and not end.data and not end.ended:
                end.data = end.sock.recv(_CHUNK_BYTES)
                end.ended = not end.data
            if ready & selectors.EVENT_WRITE and other.data:
                other.data = other.data[end.sock.send(other.data) :]
        except (BlockingIOError, InterruptedError):
            return  # it was not ready after all: the next event says so
        except OSError:
            self._close(end, other)
            return
        self._pass_on_the_end(end, other)

    def _pass_on_the_end(self, end: _End, other: _End) -> None:
        for one, peer in ((end, other), (other, end)):
            if one.ended and not one.data and not one.told:
                one.told = True
                try:
                    peer.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    self._close(end, other)
                    return
        if end.told and other.told:
            self._close(end, other)
            return
        for one, peer in ((end, other), (other, end)):
            self._watch(one, peer)

    def _watch(self, end: _End, other: _End) -> None:
        wanted = 0
        if not end.data and not end.ended:
            wanted |= selectors.EVENT_READ
        if other.data:
            wanted |= selectors.EVENT_WRITE
        registered = end.sock in self._selector.get_map()
        if wanted and registered:
            self._selector.modify(end.sock, wanted, end)
        elif wanted:
            self._selector.register(end.sock, wanted, end)
        elif registered:
            self._selector.unregister(end.sock)

    def _close(self, end: _End, other: _End) -> None:
        self._open -= 1
        for one in (end, other):
            if one.sock in self._selector.get_map():
                self._selector.unregister(one.sock)
            one.sock.close()
