"""What a server says of the chain over a session's log (an extension; docs/extensions.md)."""

import re
from typing import Final

import msgspec

from corral.wire.errors import InvalidRequest

_HEAD: Final = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})")


class Head(msgspec.Struct, frozen=True):
    """The link at a place of the log, in hexadecimal. Written ``SEQ:LINK``."""

    seq: int
    head: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.head}"


class ChainProblem(msgspec.Struct, frozen=True):
    """The first thing at fault. ``seq`` is the place of the first event concerned; null if a seal is at
    fault.
    """

    kind: str
    seq: int | None
    event_id: str | None
    message: str


class ChainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What verifying a session's log has come to."""

    session_id: str
    intact: bool
    events: int
    """How many events were found in order, from the first on."""
    head: Head
    """The link of the last of them. Kept elsewhere, it shows later whether the log up to there was changed.
    """
    undigested: int
    """Events without a digest of their own: written by a server of an older version, covered once sealed."""
    sealed_through: int
    """The last event that a seal covers."""
    signed: bool
    """Whether seals were held against keys."""
    public_keys: list[str]
    problem: ChainProblem | None


def parse_head(text: str) -> Head:
    """The head that a request or a person names as ``SEQ:LINK``; raises `InvalidRequest`."""
    found = _HEAD.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidRequest("head: must be SEQ:LINK, as `corral session verify` prints it")
    return Head(int(found[1]), found[2])
