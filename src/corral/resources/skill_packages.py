"""From what was uploaded to what is kept: the files of a skill, checked, as one zip archive.

An upload is a part for each file, or one part that is a zip archive. It is gathered in a temporary file as it
comes, in whatever order, and looked at when all of it is there, off the event loop.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import IO, Final, Self

import msgspec

from corral.wire import archives
from corral.wire.archives import ArchiveLimits
from corral.wire.errors import InvalidRequest
from corral.wire.front_matter import BYTES, check_name, front_matter
from corral.wire.skills import ENTRY_FILE

# Below this nothing touches the disk.
_IN_MEMORY: Final = 1024 * 1024
_WRITE_BYTES: Final = 256 * 1024
_SHEBANG: Final = b"#!"


class _Part(msgspec.Struct, frozen=True):
    filename: str
    begin: int
    size: int


class _File(msgspec.Struct, frozen=True):
    """A file of the skill: its content can be read as often as needed."""

    path: str
    executable: bool | None
    read: Callable[[], Iterator[bytes]]


class Package(msgspec.Struct, frozen=True):
    """A skill that is in order: what its front matter says, and its archive, open at the beginning."""

    name: str
    description: str
    archive: IO[bytes]

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The bytes of the archive."""
        while piece := await asyncio.to_thread(self.archive.read, archives.PIECE_BYTES):
            yield piece


class SkillUpload:
    """The parts of an upload as they come. Use with ``with``: its temporary file goes away at the end."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed by __exit__
        self._parts: list[_Part] = []
        self._size = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    async def add(self, filename: str, pieces: AsyncGenerator[bytes]) -> None:
        """Take in a part. `filename` is the path of a file in the skill, or the name of an archive.

        Raises:
            RequestTooLarge: all parts together are larger than a skill may be.
            InvalidRequest: there are too many.
        """
        if len(self._parts) >= self._limits.entries:
            raise InvalidRequest(f"files: at most {self._limits.entries} files")
        begin = self._size
        async for piece in pieces:
            self._size += len(piece)
            if self._size > self._limits.total_bytes:
                raise archives.too_large(self._limits.total_bytes)
            self._waiting.append(piece)
            self._waiting_bytes += len(piece)
            if self._waiting_bytes >= _WRITE_BYTES:
                await asyncio.to_thread(self._write)
        self._parts.append(_Part(filename, begin, self._size - begin))

    @asynccontextmanager
    async def packaged(self) -> AsyncGenerator[Package]:
        """The skill that was uploaded.

        Raises:
            InvalidRequest: it is none; the message says what is wrong with which file.
            RequestTooLarge: unpacked it is larger than a skill may be.
        """
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as archive:
            yield await asyncio.to_thread(self._package, archive)

    def _write(self) -> None:
        self._file.write(b"".join(self._waiting))
        self._waiting, self._waiting_bytes = [], 0

    def _package(self, out: IO[bytes]) -> Package:
        self._write()
        with ExitStack() as stack:
            files = self._zipped(stack) if self._is_archive() else self._given()
            if not files:
                raise InvalidRequest("files: Field required")
            folder = _top_folder(files)
            name, description = _described(files, folder)
            content = [(file.path, _executable(file), file.read()) for file in files]
            archives.packed(out, content, self._limits.total_bytes)
        out.seek(0)
        return Package(name, description, out)

    def _is_archive(self) -> bool:
        if len(self._parts) != 1:
            return False
        self._file.seek(0)
        # What stands in a folder is a file of the skill, whatever is in it.
        return "/" not in self._parts[0].filename and archives.is_zip(self._file.read(4))

    def _zipped(self, stack: ExitStack) -> list[_File]:
        archive = stack.enter_context(archives.opened(self._file, self._limits))
        return [
            _File(entry.path, entry.executable, lambda path=entry.path: archive.pieces(path))
            for entry in archive.entries
        ]

    def _given(self) -> list[_File]:
        places = archives.Places()
        files: list[_File] = []
        for part in self._parts:
            path = archives.checked_path(part.filename, self._limits.depth)
            if not archives.is_litter(path):
                places.add(path)
                files.append(_File(path, None, lambda part=part: self._pieces(part)))
        return files

    def _pieces(self, part: _Part) -> Iterator[bytes]:
        at, end = part.begin, part.begin + part.size
        while at < end:
            self._file.seek(at)
            piece = self._file.read(min(archives.PIECE_BYTES, end - at))
            at += len(piece)
            yield piece


def _top_folder(files: list[_File]) -> str:
    folders = {file.path.split("/")[0] if "/" in file.path else "" for file in files}
    if "" in folders or len(folders) != 1:
        raise InvalidRequest(
            f"files: all files must be in one folder, as in `my-skill/{ENTRY_FILE}`; the top of the upload "
            f"holds {', '.join(sorted(repr(folder or 'files') for folder in folders))[:200]}"
        )
    return folders.pop()


def _described(files: list[_File], folder: str) -> tuple[str, str]:
    """The skill's name and description."""
    entry = next((file for file in files if file.path == f"{folder}/{ENTRY_FILE}"), None)
    if entry is None:
        raise InvalidRequest(f"files: {folder}/{ENTRY_FILE} is missing")
    about = front_matter(_head(entry, BYTES))
    # The name may be left to the folder.
    check_name(about.name or folder)
    if about.name and about.name != folder:
        raise InvalidRequest(
            f"files: the folder is called {folder[:100]!r} and the name in {ENTRY_FILE} is {about.name!r}; "
            "they must be the same"
        )
    return about.name or folder, about.description


def _executable(file: _File) -> bool:
    """As the archive says; where nothing says it, a file that names its interpreter is to be run."""
    return _head(file, len(_SHEBANG)) == _SHEBANG if file.executable is None else file.executable


def _head(file: _File, size: int) -> bytes:
    head = b""
    for piece in file.read():
        head += piece
        if len(head) >= size:
            break
    return head[:size]
