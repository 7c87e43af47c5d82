"""The beginning of a conversation that changes no more, encoded once for all requests that follow.

A conversation only grows at its end, and each request holds all of it. What lies behind the last prompt-cache
mark goes out with the same bytes from then on, so it is kept as these bytes, in pieces: a new request copies
them, and a snapshot stores each piece once (`corral.brain.snapshots`). A message with media in it is a piece
of its own, and kept as it is as well: which media a request may hold depends on all of them.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from corral.brain.media_limits import media_of

PIECE_BYTES: Final = 64 * 1024
"""A piece grows up to here, so that adding a message copies no more than this."""

Message = dict[str, Any]


class Piece(msgspec.Struct, frozen=True):
    """Some messages in a row: JSON objects with commas between them. `message` is the one with media."""

    body: bytes
    message: Message | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing is added to it any more."""
        return self.message is not None or len(self.body) >= PIECE_BYTES


class Settled:
    """The pieces of one thread's conversation, in their order.

    `dropped` pieces lay before the first one: a piece's position, counted over all, is its own for good.
    """

    def __init__(self, pieces: Iterable[Piece] = (), dropped: int = 0) -> None:
        self._pieces = list(pieces)
        self.dropped = dropped

    def add(self, message: Message) -> None:
        """Settle one more message."""
        body = msgspec.json.encode(message)
        if any(True for _ in media_of([message])):
            self._pieces.append(Piece(body, message))
        elif self._pieces and not self._pieces[-1].closed:
            self._pieces[-1] = Piece(self._pieces[-1].body + b"," + body)
        else:
            self._pieces.append(Piece(body))

    def drop(self) -> None:
        """Forget everything so far: the conversation starts anew with what is added from here on."""
        self.dropped += len(self._pieces)
        self._pieces.clear()

    def messages(self) -> list[Message | msgspec.Raw]:
        """The messages as a request takes them: several in one `Raw`, but for those with media."""
        return [piece.message or msgspec.Raw(piece.body) for piece in self._pieces]

    def closed(self) -> tuple[Piece, ...]:
        """The pieces that stay as they are."""
        return tuple(self._pieces[:-1] if self._is_open() else self._pieces)

    def open(self) -> bytes:
        """The messages of the last piece if more may be added to it; empty if there is none."""
        return self._pieces[-1].body if self._is_open() else b""

    def _is_open(self) -> bool:
        return bool(self._pieces) and not self._pieces[-1].closed


def decoded(messages: Iterable[Message | msgspec.Raw]) -> list[Message]:
    """The messages one by one, those in `Raw` decoded."""
    found: list[Message] = []
    for message in messages:
        if isinstance(message, msgspec.Raw):
            found += msgspec.json.decode(b"[" + bytes(message) + b"]", type=list[Message])
        else:
            found.append(message)
    return found
