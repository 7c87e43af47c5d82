"""Removing folders that an agent has filled. All of it blocks.

The agent chooses how deep they go, how much is in each and what may be entered, so neither the stack, nor the
number of open files, nor the length of a path may depend on it. Links are never followed.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final
from uuid import uuid4

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE: Final = 1000
_MOST: Final = 20_000_000


def remove_tree(top: Path) -> None:
    """Remove a folder and all below it. Raises `OSError`; then a part of it may be left."""
    empty_folder(top)
    top.rmdir()


def empty_folder(top: Path, most: int = _MOST) -> None:
    """Remove all that is in a folder, and keep the folder as it was: a sandbox may show it.

    Raises:
        OSError: a part of it cannot be removed; or `most` files and folders were, and still there is one.
    """
    mode = stat.S_IMODE(top.stat(follow_symlinks=False).st_mode)
    with _opened(os.fspath(top), None) as descriptor:
        try:
            _empty(descriptor, most)
        finally:
            os.fchmod(descriptor, mode)


def _empty(descriptor: int, most: int) -> None:
    emptying = _Emptying(descriptor, most)
    while waiting := emptying.clear(descriptor):
        while waiting:
            name = waiting.pop()
            with _opened(name, descriptor) as inner:
                while moved := emptying.clear(inner):
                    waiting += moved
            os.rmdir(name, dir_fd=descriptor)


class _Emptying:
    """Clears folders below `top`. Folders in them are moved to the top, which keeps all paths short."""

    def __init__(self, top: int, most: int) -> None:
        self._top = top
        self._left = most

    def clear(self, folder: int) -> list[str]:
        """Remove the files of a folder; returns the names, at the top, of some folders that it had."""
        found: list[str] = []
        while not found:
            with os.scandir(folder) as entries:
                some = [(one.name, one.is_dir(follow_symlinks=False)) for one in islice(entries, _AT_ONCE)]
            if not some:
                break
            self._left -= len(some)
            if self._left < 0:
                raise OSError("a folder does not become empty: something goes on filling it")
            for name, is_folder in some:
                if not is_folder:
                    os.unlink(name, dir_fd=folder)
                else:
                    found.append(name if folder == self._top else self._moved_up(folder, name))
        return found

    def _moved_up(self, folder: int, name: str) -> str:
        at_top = f".gone-{uuid4().hex}"
        try:
            os.rename(name, at_top, src_dir_fd=folder, dst_dir_fd=self._top)
        except PermissionError:
            _open_up(name, folder)  # to be moved it must be writable
            os.rename(name, at_top, src_dir_fd=folder, dst_dir_fd=self._top)
        return at_top


@contextmanager
def _opened(name: str, folder: int | None) -> Generator[int]:
    """Open a folder so that it can be emptied, whatever the agent has closed."""
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        _open_up(name, folder)
        descriptor = os.open(name, _FOLDER, dir_fd=folder)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def _open_up(name: str, folder: int | None) -> None:
    """Let its owner into a folder. By descriptor: a link that takes its place must not be followed."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)
