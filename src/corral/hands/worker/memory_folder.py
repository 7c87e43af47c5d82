"""The files of one memory store on this machine: found, read, written and removed. All of it blocks.

The sandbox shows the folder, so all in it is the agent's: names, links, sizes, and what happens there while
it is read. Each path is walked anew from the folder's descriptor with every link refused, and only regular
files count. Paths are those of memories, such as ``/notes/a.md``.
"""

import hashlib
import os
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from corral.hands.worker.trees import empty_folder
from corral.wire.errors import InvalidRequest
from corral.wire.memories import CONTENT_BYTES, SEGMENTS, check_path

_ENTRIES: Final = 20_000
_DRAFT: Final = ".corral-draft-"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: a named pipe must not hold the worker up before it is seen to be one.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# A file that was changed so shortly before a look may change again without any sign of it.
_RACY_NS: Final = 2_000_000_000


class Local(NamedTuple):
    """A look at the folder: the hash of each file that can be a memory, and why others cannot."""

    files: dict[str, str]
    unfit: dict[str, str]


class _Seen(NamedTuple):
    sign: tuple[int, int, int, int]
    sha: str


class MemoryFolder:
    """The folder of one store. Files and folders made here belong to whom the folder belongs to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._seen: dict[str, _Seen] = {}

    def make(self) -> None:
        """Make the folder if there is none."""
        if not self.root.exists():
            self.root.mkdir()
            self.root.chmod(0o755)

    def look(self) -> Local:
        """All files, hashed where they have changed since the last look.

        Raises:
            OSError: a part of it cannot be read, so that nothing can be said about what is missing.
        """
        now = time.time_ns()
        local = Local({}, {})
        seen: dict[str, _Seen] = {}
        with _opened(self.root) as root:
            for path, parent, name in _walk(root, "", 0):
                found = _found(parent, name)
                if found is None:
                    continue
                reason = _reason(path, found)
                if reason is not None:
                    local.unfit[path] = reason
                    continue
                sign = (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
                before = self._seen.get(path)
                sha = before.sha if before is not None and before.sign == sign else _hash(parent, name)
                if sha is None:
                    continue
                local.files[path] = sha
                if found.st_ctime_ns < now - _RACY_NS:
                    seen[path] = _Seen(sign, sha)
                if len(local.files) + len(local.unfit) > _ENTRIES:
                    raise OSError(f"more than {_ENTRIES} files")
        self._seen = seen
        return local

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, at most one more than a memory may have; None where there is no such file."""
        *folders, name = _parts(path)
        try:
            with _opened(self.root) as root, _inside(root, folders) as parent:
                return _content(parent, name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, content: bytes) -> None:
        """Put a file in its place in one step, with its folders; a file in a folder's place gives way.

        Raises:
            OSError: it cannot be done, for one because the file's place is a folder that holds something.
        """
        *folders, name = _parts(path)
        with _opened(self.root) as root:
            owner = os.fstat(root)
            with _inside(root, folders, make_for=owner) as parent:
                draft = f"{_DRAFT}{uuid4().hex}"
                descriptor = os.open(draft, _CREATE, 0o644, dir_fd=parent)
                try:
                    with open(descriptor, "wb") as out:
                        _give(descriptor, owner, 0o644)
                        out.write(content)
                    _drop_empty_folder(parent, name)
                    os.rename(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
                except BaseException:
                    os.unlink(draft, dir_fd=parent)
                    raise

    def remove(self, path: str) -> None:
        """Remove a file, and the folders that it leaves empty; that there is none is no failure."""
        parts = _parts(path)
        with _opened(self.root) as root:
            for depth in range(len(parts) - 1, -1, -1):
                try:
                    with _inside(root, parts[:depth]) as parent:
                        if depth == len(parts) - 1:
                            os.unlink(parts[depth], dir_fd=parent)
                        else:
                            os.rmdir(parts[depth], dir_fd=parent)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                except OSError:
                    if depth == len(parts) - 1:
                        raise
                    return  # the folder holds other files

    def clear(self) -> None:
        """Remove everything in the folder, and keep the folder, which a sandbox may show."""
        self._seen = {}
        empty_folder(self.root, most=10 * _ENTRIES)


def _parts(path: str) -> list[str]:
    # The server's word is not enough: this becomes a path on this machine.
    check_path(path)
    return path[1:].split("/")


def _found(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _hash(parent: int, name: str) -> str | None:
    content = _content(parent, name)
    return None if content is None else hashlib.sha256(content).hexdigest()


def _reason(path: str, found: os.stat_result) -> str | None:
    """Why a file cannot be a memory, or None."""
    if not stat.S_ISREG(found.st_mode):
        return "it is a link, a pipe or another special file"
    try:
        check_path(path)
    except InvalidRequest as error:
        return f"its path cannot be a memory's ({error.message})"
    if found.st_size > CONTENT_BYTES:
        return f"it has {found.st_size} bytes; the limit is {CONTENT_BYTES}"
    return None


def _walk(folder: int, path: str, depth: int) -> Iterator[tuple[str, int, str]]:
    """All that is no folder: its path, its folder's descriptor, its name. Nothing deeper than can be."""
    if depth > SEGMENTS:
        return
    with os.scandir(folder) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, _ENTRIES)]
    for name, is_folder in sorted(listed):
        if name.startswith(_DRAFT):
            continue
        if not is_folder:
            yield f"{path}/{name}", folder, name
            continue
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone meanwhile
        try:
            yield from _walk(inner, f"{path}/{name}", depth + 1)
        finally:
            os.close(inner)


@contextmanager
def _opened(root: Path) -> Generator[int]:
    descriptor = os.open(root, _FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _inside(root: int, folders: list[str], make_for: os.stat_result | None = None) -> Generator[int]:
    """The descriptor of a folder below; missing ones are made where it is said for whom."""
    here = os.dup(root)
    try:
        for name in folders:
            if make_for is not None:
                _make(here, name, make_for)
            there = os.open(name, _FOLDER, dir_fd=here)
            os.close(here)
            here = there
        yield here
    finally:
        os.close(here)


def _make(parent: int, name: str, owner: os.stat_result) -> None:
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        pass
    else:
        if stat.S_ISDIR(found.st_mode):
            return
        os.unlink(name, dir_fd=parent)
    os.mkdir(name, 0o755, dir_fd=parent)
    descriptor = os.open(name, _FOLDER, dir_fd=parent)
    try:
        _give(descriptor, owner, 0o755)
    finally:
        os.close(descriptor)


def _give(descriptor: int, owner: os.stat_result, mode: int) -> None:
    os.fchmod(descriptor, mode)
    if os.geteuid() == 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _content(parent: int, name: str) -> bytes | None:
    try:
        descriptor = os.open(name, _READ, dir_fd=parent)
    except OSError as error:
        if isinstance(error, PermissionError):
            raise
        return None  # gone, or become a link meanwhile
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return file.read(CONTENT_BYTES + 1)


def _drop_empty_folder(parent: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError):
        pass
