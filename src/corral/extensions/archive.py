"""The file that a session is exported to: a gzipped tar of plain files, written and read in one go.

The members stand in a fixed order: ``manifest.json``, ``session.json``, ``events/00001.jsonl`` and so on,
``files/<id>`` for each file, ``checksums.json``, and ``signature.json`` where the server has a key. Reading
is strict: any other member, order, kind, header or size is refused, so that there is one way to read a file,
and nothing is unpacked by name. Everything works on open files and blocks: call it off the event loop.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any, Final, TypeVar

import msgspec

from corral.session.chain import StoredEvent
from corral.session.seals import SigningKey, VerifyKey
from corral.wire.errors import InvalidRequest, RequestTooLarge

T = TypeVar("T")

FORMAT: Final = "corral-session"
VERSION: Final = 1
MEDIA_TYPE: Final = "application/gzip"
MANIFEST: Final = "manifest.json"
SESSION: Final = "session.json"
CHECKSUMS: Final = "checksums.json"
SIGNATURE: Final = "signature.json"
UNPACKED_BYTES: Final = 8 * 1024**3
"""Most that a file may unpack to."""
FILES: Final = 2_000
_JSON_BYTES: Final = 32 * 1024**2
_LINE_BYTES: Final = 64 * 1024**2
_BLOCK: Final = 512
_READ: Final = 64 * 1024
_MAGIC: Final = b"ustar\x0000"
_NAME: Final = re.compile(
    r"manifest\.json|session\.json|events/[0-9]{5}\.jsonl|files/file_[A-Za-z0-9]{1,64}|checksums\.json"
    r"|signature\.json"
)
_ORDER: Final = (MANIFEST, SESSION, "events/", "files/", CHECKSUMS, SIGNATURE)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of itself, first of all."""

    format: str
    version: int
    corral: str
    """The version of the server that wrote it."""
    exported_at: str
    session_id: str
    events: int
    head: str | None
    """The link of the last event, in hexadecimal; null of an empty log."""


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a session. ``role``: mounted in it, put out by it, or shown in its conversation."""

    id: str
    role: str
    filename: str
    mime_type: str
    size_bytes: int
    path: str | None = None
    """Where it is mounted, or lies among the outputs."""


class ExportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a session beside its log and its files. No secret is in it: vaults are ids alone."""

    id: str
    title: str | None
    metadata: dict[str, str]
    agent: dict[str, Any]
    environment: dict[str, Any]
    """Its id, name and config type."""
    vault_ids: list[str]
    budget: dict[str, Any] | None
    primary_thread_id: str
    status: str
    created_at: str
    archived_threads: list[str]
    resources: list[dict[str, Any]]
    """Type, body, and whether the session began with it."""
    skills: list[dict[str, Any]]
    mcp_tools: list[dict[str, Any]]
    files: list[ExportedFile]
    web: dict[str, Any]
    """The web tools that the server offered."""
    origin: dict[str, Any] | None = None


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the log as its row has it, byte for byte."""

    seq: int
    id: str
    type: str
    thread_id: str
    processed_at: datetime
    body: msgspec.Raw
    private: msgspec.Raw
    """``null`` where there is none."""
    resolves: str | None = None
    crossposted: int = 0
    digest: str | None = None

    @classmethod
    def of(cls, event: StoredEvent) -> "EventLine":
        """The line of a stored event."""
        return cls(
            seq=event.seq,
            id=event.id,
            type=event.type,
            thread_id=event.thread_id,
            processed_at=event.processed_at,
            body=msgspec.Raw(event.body.encode()),
            private=msgspec.Raw(b"null" if event.private is None else event.private.encode()),
            resolves=event.resolves,
            crossposted=event.crossposted,
            digest=None if event.digest is None else event.digest.hex(),
        )

    def stored(self) -> StoredEvent:
        """The event that the line holds; raises ValueError over a digest that is none."""
        return StoredEvent(
            self.seq,
            self.id,
            self.type,
            self.thread_id,
            bytes(self.body).decode(),
            None if bytes(self.private) == b"null" else bytes(self.private).decode(),
            self.resolves,
            self.crossposted,
            self.processed_at,
            None if self.digest is None else bytes.fromhex(self.digest),
        )


class Checksums(msgspec.Struct, frozen=True):
    """SHA-256 of every member before it, in hexadecimal."""

    sha256: dict[str, str]


class Signature(msgspec.Struct, frozen=True):
    """Who exported the file: over the SHA-256 of ``checksums.json``."""

    public_key: str
    signature: str


class ArchiveWriter:
    """Turns members into the bytes of a file, piece by piece."""

    def __init__(self) -> None:
        self._gzip = zlib.compressobj(6, zlib.DEFLATED, 31)
        self._checksums: dict[str, str] = {}

    def member(self, name: str, content: bytes) -> bytes:
        """A whole member."""
        return b"".join([self.begin(name, len(content)), self.piece(content), self.end()])

    def begin(self, name: str, size: int) -> bytes:
        """The head of a member whose content follows in pieces."""
        self._name, self._size, self._hash = name, size, hashlib.sha256()
        return self._gzip.compress(_header(name, size))

    def piece(self, content: bytes) -> bytes:
        """More of the member's content."""
        self._hash.update(content)
        return self._gzip.compress(content)

    def end(self) -> bytes:
        """The end of a member's content."""
        self._checksums[self._name] = self._hash.hexdigest()
        return self._gzip.compress(b"\0" * (-self._size % _BLOCK))

    def finish(self, key: SigningKey | None) -> bytes:
        """The checksums, the signature where there is a key, and the end of the file."""
        checksums = msgspec.json.encode(Checksums(self._checksums))
        out = [self.member(CHECKSUMS, checksums)]
        if key is not None:
            signed = Signature(key.public.text, key.sign(hashlib.sha256(checksums).digest()).hex())
            out.append(self.member(SIGNATURE, msgspec.json.encode(signed)))
        out += [self._gzip.compress(b"\0" * 2 * _BLOCK), self._gzip.flush()]
        return b"".join(out)


def _header(name: str, size: int) -> bytes:
    head = bytearray(_BLOCK)
    head[0 : len(name)] = name.encode()
    head[100:108], head[108:116], head[116:124] = b"0000644\0", b"0000000\0", b"0000000\0"
    head[124:136], head[136:148] = f"{size:011o}\0".encode(), b"00000000000\0"
    head[148:156], head[156:157], head[257:265] = b" " * 8, b"0", _MAGIC
    head[148:156] = f"{sum(head):06o}\0 ".encode()
    return bytes(head)


class Member:
    """A member that is being read: its content has to be taken before the next one comes."""

    def __init__(self, name: str, size: int, read: "_Unzipped") -> None:
        self.name = name
        self.size = size
        self._read = read
        self._hash = hashlib.sha256()
        self._left = size

    def pieces(self) -> Iterator[bytes]:
        """The content."""
        while self._left:
            piece = self._read.take(min(self._left, _READ))
            self._left -= len(piece)
            self._hash.update(piece)
            yield piece

    def content(self) -> bytes:
        """All of it, of a member of admissible size."""
        if self.size > _JSON_BYTES:
            raise _broken(f"{self.name} is too large")
        return b"".join(self.pieces())

    def lines(self) -> Iterator[bytes]:
        """The content in lines."""
        begun: list[bytes] = []
        size = 0
        for piece in self.pieces():
            first, *more = piece.split(b"\n")
            begun.append(first)
            size += len(first)
            if size > _LINE_BYTES:
                raise _broken("an event is too large")
            if more:
                yield b"".join(begun)
                yield from more[:-1]
                begun, size = [more[-1]], len(more[-1])
        if size:
            raise _broken(f"{self.name} ends in the middle of a line")

    def digest(self) -> str:
        """The SHA-256 of the content, which has been taken."""
        for _ in self.pieces():
            pass
        return self._hash.hexdigest()


class _Unzipped:
    """The bytes of a gzip file, no more of them than allowed."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file = file
        self._gzip = zlib.decompressobj(31)
        self._ready = b""
        self._left = most
        self._most = most

    def take(self, size: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._ready) < size:
            if not self._more():
                raise _broken("it ends too early")
        taken, self._ready = self._ready[:size], self._ready[size:]
        return taken

    def check_end(self) -> None:
        """Refuse anything but the padding of a tar file."""
        while True:
            if self._ready.strip(b"\0"):
                raise _broken("something stands behind its end")
            self._ready = b""
            if not self._more():
                break
        if self._gzip.unused_data or self._file.read(1):
            raise _broken("something stands behind its end")

    def _more(self) -> bool:
        while not self._gzip.eof:
            raw = self._gzip.unconsumed_tail or self._file.read(_READ)
            if not raw:
                raise _broken("it is cut off")
            try:
                piece = self._gzip.decompress(raw, _READ)
            except zlib.error as error:
                raise _broken(str(error)) from None
            self._left -= len(piece)
            if self._left < 0:
                raise RequestTooLarge(f"The file unpacks to more than {self._most} bytes")
            if piece:
                self._ready += piece
                return True
        return False


class ArchiveReader:
    """Reads a file once, from its beginning.

    Raises `InvalidRequest` from whatever is called where something is not as it must be.
    """

    def __init__(self, file: IO[bytes], *, most: int = UNPACKED_BYTES) -> None:
        self._raw = _Unzipped(file, most)
        self._seen: dict[str, str] = {}
        self._place = 0
        self._last = ""
        self.signed_by: VerifyKey | None = None
        """The key that the file is signed with, once all of it was read. Anybody can sign with one of theirs.
        """

    def members(self) -> Iterator[Member]:
        """The members up to the checksums, which are held against what was read."""
        checksums = b""
        while (header := self._raw.take(_BLOCK)) != b"\0" * _BLOCK:
            name, size = _parsed(header)
            self._check_order(name)
            member = Member(name, size, self._raw)
            if name == CHECKSUMS:
                checksums = member.content()
                self._check(checksums)
            elif name == SIGNATURE:
                self.signed_by = _signer(member.content(), checksums)
            else:
                yield member
                self._seen[name] = member.digest()
            self._raw.take(-size % _BLOCK)
        if not checksums:
            raise _broken("it has no checksums")
        self._raw.check_end()

    def _check_order(self, name: str) -> None:
        place = next(n for n, start in enumerate(_ORDER) if name.startswith(start))
        repeats = place == self._place and self._seen and _ORDER[place].endswith("/") and name > self._last
        first = not self._seen and not self._last and place == 0
        follows = place > self._place and (place >= 2 or place == self._place + 1)
        if not (repeats or first or (follows and bool(self._last))):
            raise _broken(f"{name} is not where it belongs")
        if place == 2 and place != self._place and name != "events/00001.jsonl":
            raise _broken(f"{name} is not where it belongs")
        self._place, self._last = place, name

    def _check(self, content: bytes) -> None:
        if decoded(content, Checksums, CHECKSUMS).sha256 != self._seen:
            raise _broken("its checksums do not fit its content")


def decoded(content: bytes, type_: type[T], name: str) -> T:
    """The value of a JSON member; raises `InvalidRequest`."""
    try:
        return msgspec.json.decode(content, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _broken(f"{name}: {error}") from None


def _signer(content: bytes, checksums: bytes) -> VerifyKey:
    signed = decoded(content, Signature, SIGNATURE)
    try:
        key = VerifyKey.parse(signed.public_key)
        valid = key.verifies(bytes.fromhex(signed.signature), hashlib.sha256(checksums).digest())
    except ValueError:
        valid, key = False, None
    if not valid or key is None:
        raise _broken("its signature does not fit its content")
    return key


def _parsed(header: bytes) -> tuple[str, int]:
    """The name and the size of a member, from a header of the one kind that is written here."""
    name = header[:100].rstrip(b"\0").decode("latin-1")
    digits = header[124:135]
    if not _NAME.fullmatch(name) or not re.fullmatch(rb"[0-7]{11}", digits):
        raise _broken(f"it holds a member {name[:100]!r}, which it must not")
    size = int(digits, 8)
    if header != _header(name, size):
        raise _broken(f"the header of {name} is not of the kind that Corral writes")
    return name, size


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"The file cannot be read as an exported session: {why}")
