"""The sandbox's way out: a proxy's port on the loopback, whose connections go on through a Unix socket.

The sandbox has no other network. What comes through is for the gateway to judge: nothing is read here. The
port is there before the first command; what carries connections takes as long to import as the interpreter
takes to start, and comes with the first connection.
"""

from __future__ import annotations

import select
import time

from .quick import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
else:
    import _socket as socket  # what `socket` is made of, without what that imports

PORT = 3128
_BACKLOG = 128
_PAUSE_SECONDS = 1.0


class Forwarder:
    """Serves in a thread of its own until the program ends. Raises OSError if the port cannot be had."""

    def __init__(self, path: str, port: int = PORT) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(_BACKLOG)

    def start(self) -> None:
        """Begin to serve."""
        start_new_thread(self._serve, ())

    def _serve(self) -> None:
        somebody = select.poll()
        somebody.register(self._listener.fileno(), select.POLLIN)
        while not somebody.poll():
            pass
        while True:
            try:
                from .forwarding import Forwarding

                break
            except (ImportError, MemoryError, OSError):
                time.sleep(_PAUSE_SECONDS)  # the agent's commands have taken all memory, for now
        Forwarding(self._path, self._listener.detach()).run()
