"""Zip archives from outside: the strict reader for them, and the plain form in which Corral keeps folders.

`zipfile` reads. What may be read is decided here, from the archive's directory, before a byte is unpacked:
no path that leads outside, no link and no device, no name twice (not even in another case), nothing
encrypted, no more entries and bytes than allowed. Sizes are counted again while unpacking, since a directory
can lie.

Everything works on open files and blocks: call it off the event loop.
"""

import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

import msgspec

from corral.wire.errors import InvalidRequest, RequestTooLarge
from corral.wire.text import REPLACEMENT

PIECE_BYTES: Final = 64 * 1024
"""How much is unpacked at a time."""

_PATH_BYTES: Final = 512
_SEGMENT_BYTES: Final = 255
# A name is not shown as what it is where it holds one of these, or another system takes it for a separator.
_BARRED: Final = frozenset("\\:" + REPLACEMENT)
_UNSHOWN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# What file managers put beside the files that they pack; nobody means it to be part of a folder.
_LITTER: Final = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
_LITTER_FOLDER: Final = "__MACOSX"

_MAGIC: Final = b"PK\x03\x04"
_END: Final = b"PK\x05\x06"
_END_BYTES: Final = 22
_END_64_LOCATOR: Final = b"PK\x06\x07"
_LOCATOR_BYTES: Final = 20
_LONGEST_COMMENT: Final = 65535
_DIRECTORY_BYTES: Final = 1024 * 1024
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_UTF_8: Final = 0x800
_UNIX: Final = frozenset({3, 19})
_METHODS: Final = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class ArchiveLimits(msgspec.Struct, frozen=True):
    """How much an archive may hold: entries (folders count), bytes once unpacked, and folders in folders."""

    entries: int
    total_bytes: int
    depth: int = 16


class Entry(msgspec.Struct, frozen=True):
    """A file in an archive. ``executable`` is None where the archive does not say."""

    path: str
    size_bytes: int
    executable: bool | None


def checked_path(path: str, depth: int) -> str:
    """A relative path of plain names, as it stands.

    Raises:
        InvalidRequest: it leads elsewhere, is too long or too deep, or holds characters that a name may not.
    """
    shown = repr(path[:200])
    if any(character in _BARRED or unicodedata.category(character) in _UNSHOWN for character in path):
        raise InvalidRequest(
            f"files: the path {shown} holds a backslash, a colon, a character that cannot be seen, or one "
            "that is not UTF-8"
        )
    segments = path.split("/")
    if path.startswith("/") or any(segment in ("", ".", "..") for segment in segments):
        raise InvalidRequest(f"files: the path {shown} must be relative, without empty parts, '.' and '..'")
    if any(segment != segment.strip() for segment in segments):
        raise InvalidRequest(f"files: in the path {shown} a name begins or ends with a blank")
    if len(path.encode()) > _PATH_BYTES or any(len(s.encode()) > _SEGMENT_BYTES for s in segments):
        raise InvalidRequest(
            f"files: the path {shown} is too long: at most {_PATH_BYTES} bytes, {_SEGMENT_BYTES} in a name"
        )
    if len(segments) > depth:
        raise InvalidRequest(f"files: the path {shown} is more than {depth} folders deep")
    return path


def is_litter(path: str) -> bool:
    """Whether a path is what file managers leave behind, such as ``.DS_Store``."""
    segments = path.split("/")
    return segments[0] == _LITTER_FOLDER or segments[-1] in _LITTER


class Places:
    """Paths of one folder that do not get in each other's way, on any file system."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: dict[str, str] = {}

    def add(self, path: str, *, folder: bool = False) -> None:
        """Take a path in.

        Raises:
            InvalidRequest: it is there already, or would be on a file system that ignores case, or is a file
                and a folder at once.
        """
        segments = path.split("/")
        for size in range(1, len(segments) + folder):
            parent = "/".join(segments[:size])
            key = _key(parent)
            if key in self._files or self._folders.setdefault(key, parent) != parent:
                raise _clash(parent)
        if not folder:
            key = _key(path)
            if key in self._files or key in self._folders:
                raise _clash(path)
            self._files.add(key)


def _key(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _clash(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"files: the path {path[:200]!r} is given more than once, or differs from another in case alone, or "
        "is a file and a folder at once"
    )


class StrictZip:
    """A zip archive whose directory has been read and found in order. See `opened`."""

    def __init__(
        self, archive: zipfile.ZipFile, infos: Sequence[zipfile.ZipInfo], limits: ArchiveLimits
    ) -> None:
        self._archive = archive
        self._infos: dict[str, zipfile.ZipInfo] = {}
        places = Places()
        total = 0
        if len(infos) > limits.entries:
            raise InvalidRequest(f"files: the archive has more than {limits.entries} entries")
        for info in infos:
            path, folder = _judged(info, limits.depth)
            total += info.file_size
            if total > limits.total_bytes:
                raise too_large(limits.total_bytes)
            if is_litter(path):
                continue
            places.add(path, folder=folder)
            if not folder:
                self._infos[path] = info

    @property
    def entries(self) -> list[Entry]:
        """The files, in the order of the archive."""
        return [Entry(path, info.file_size, _executable(info)) for path, info in self._infos.items()]

    def pieces(self, path: str) -> Iterator[bytes]:
        """The bytes of a file.

        Raises:
            InvalidRequest: they are broken, or not what the directory says.
        """
        info = self._infos[path]
        left = info.file_size
        try:
            with self._archive.open(info) as content:
                while piece := content.read(PIECE_BYTES):
                    left -= len(piece)
                    if left < 0:
                        raise _broken(f"{path[:200]!r} is larger than its directory says")
                    yield piece
        except _READ_ERRORS as error:
            raise _broken(str(error)) from None
        if left:
            raise _broken(f"{path[:200]!r} is smaller than its directory says")


# What zipfile raises over bytes that somebody has made up.
_READ_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
    ValueError,
    struct.error,
)


@contextmanager
def opened(file: IO[bytes], limits: ArchiveLimits) -> Generator[StrictZip]:
    """Open an archive, if everything in its directory is admissible.

    Raises:
        InvalidRequest: it is no zip archive, or holds what must not be there; the message says what.
        RequestTooLarge: it would unpack to more than the limit.
    """
    _check_end(file)
    file.seek(0)
    try:
        archive = zipfile.ZipFile(file)
    except _READ_ERRORS as error:
        raise _broken(str(error)) from None
    with archive:
        yield StrictZip(archive, archive.infolist(), limits)


def is_zip(head: bytes) -> bool:
    """Whether these first bytes are those of a zip archive."""
    return head.startswith(_MAGIC)


def packed(out: IO[bytes], files: Sequence[tuple[str, bool, Iterator[bytes]]], total_bytes: int) -> None:
    """Write files (path, executable, content) as an archive that is the same whenever they are the same.

    Raises:
        RequestTooLarge: they hold more than `total_bytes`.
    """
    total = 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, allowZip64=False, compresslevel=6) as archive:
        for path, executable, content in sorted(files, key=lambda file: file[0]):
            info = zipfile.ZipInfo(path, _EPOCH)
            info.create_system = 3
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            with archive.open(info, "w") as target:
                for piece in content:
                    total += len(piece)
                    if total > total_bytes:
                        raise too_large(total_bytes)
                    target.write(piece)


def too_large(most: int) -> RequestTooLarge:
    """The error for more bytes than may be taken."""
    return RequestTooLarge(f"files: exceed the maximum of {most} bytes uncompressed")


def _broken(why: str) -> InvalidRequest:
    return InvalidRequest(f"files: the zip archive cannot be read: {why}")


def _check_end(file: IO[bytes]) -> None:
    """Look at the end record as zipfile will find it, before zipfile reads what that points to."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END_BYTES - _LONGEST_COMMENT))
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        raise _broken("its end is missing")
    disk, first_disk, here, entries, directory, begin, comment = struct.unpack(
        "<4H2LH", tail[at + 4 : at + _END_BYTES]
    )
    if tail[max(0, at - _LOCATOR_BYTES) : at].startswith(_END_64_LOCATOR) or entries == 0xFFFF:
        raise _broken("it is in the format for very large archives (ZIP64)")
    if disk or first_disk or here != entries or len(tail) - at - _END_BYTES != comment:
        raise _broken("its end is not in order")
    if begin + directory != size - len(tail) + at:
        raise _broken("something stands before it, or between its parts")
    if directory > _DIRECTORY_BYTES:
        raise InvalidRequest("files: the archive has too many entries")


def _judged(info: zipfile.ZipInfo, depth: int) -> tuple[str, bool]:
    """The path of an entry and whether it is a folder; raises `InvalidRequest`."""
    name = _name(info)
    folder = name.endswith("/")
    path = checked_path(name.removesuffix("/"), depth)
    shown = repr(path[:200])
    # Whatever system the entry says to come from: another reader may go by the kind alone.
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidRequest(f"files: {shown} is a link or a device; only files and folders are taken")
    if kind and (kind == stat.S_IFDIR) != folder:
        raise InvalidRequest(f"files: {shown} is a file by its name and a folder by its kind, or the reverse")
    if folder and info.file_size:
        raise InvalidRequest(f"files: {shown} is a folder with content")
    if info.flag_bits & _ENCRYPTED:
        raise InvalidRequest(f"files: {shown} is encrypted; upload the archive without a password")
    if info.compress_type not in _METHODS:
        raise InvalidRequest(f"files: {shown} is compressed by a method other than deflate")
    return path, folder


def _name(info: zipfile.ZipInfo) -> str:
    """The name as it stands in the archive, before zipfile cuts it at a NUL or takes an extra field's."""
    name = info.orig_filename
    if info.flag_bits & _UTF_8 or name.isascii():
        return name
    try:
        # Without the mark the bytes are of some code page; many tools write UTF-8 all the same.
        return name.encode("cp437").decode()
    except UnicodeError:
        raise InvalidRequest(f"files: the name {name[:200]!r} in the archive is not UTF-8") from None


def _executable(info: zipfile.ZipInfo) -> bool | None:
    mode = info.external_attr >> 16
    if info.create_system not in _UNIX or not mode:
        return None
    return bool(mode & 0o111)
