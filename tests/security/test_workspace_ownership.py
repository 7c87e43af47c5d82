"""A workspace is given to the sandbox's user while an agent plays with links in it: nothing else is given."""

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
import structlog

from corral.hands.sandbox import access
from corral.hands.sandbox.provider import SandboxUnavailable
from corral.hands.worker.trees import remove_tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="who is not root gives nothing away")

SANDBOX = access.Identity(access.SANDBOX_UID, access.SANDBOX_GID, changed=True)
ROUNDS = 400


def owner(path: Path) -> int:
    return path.lstat().st_uid


def victim(folder: Path) -> tuple[Path, Path]:
    """A folder with a file in it, of somebody else."""
    place = folder / "victim"
    place.mkdir()
    (place / "file").write_text("not yours")
    return place, place / "file"


def test_everything_of_a_workspace_is_given_however_deep_it_is(open_folder: Path) -> None:
    workspace = open_folder / "workspace"
    (workspace / "a" / "b").mkdir(parents=True)
    (workspace / "a" / "b" / "file").write_text("")
    os.mkfifo(workspace / "a" / "pipe")
    here = os.open(workspace, os.O_RDONLY)
    for _ in range(3000):  # deeper than a path can say, and than a process may hold folders open
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    access.hand_over(workspace, SANDBOX)
    assert os.fstat(here).st_uid == access.SANDBOX_UID
    os.close(here)
    for path in (workspace, workspace / "a", workspace / "a" / "b", workspace / "a" / "b" / "file"):
        assert owner(path) == access.SANDBOX_UID
    remove_tree(workspace)


def test_neither_links_nor_what_they_lead_to_are_given(open_folder: Path) -> None:
    place, file = victim(open_folder)
    workspace = open_folder / "workspace"
    workspace.mkdir()
    (workspace / "folder").symlink_to(place)
    (workspace / "soft").symlink_to(file)
    (workspace / "hard").hardlink_to(file)
    (workspace / "mine").write_text("")
    with structlog.testing.capture_logs() as lines:
        access.hand_over(workspace, SANDBOX)
    assert (owner(place), owner(file)) == (0, 0)
    assert owner(workspace / "mine") == access.SANDBOX_UID
    (line,) = lines
    assert (line["log_level"], line["files"]) == ("warning", 1)


def test_a_workspace_that_is_a_link_is_refused(open_folder: Path) -> None:
    place, file = victim(open_folder)
    place.chmod(0o755)
    (open_folder / "workspace").symlink_to(place)
    with pytest.raises(SandboxUnavailable, match="cannot be given"):
        access.hand_over(open_folder / "workspace", SANDBOX)
    assert (owner(place), owner(file)) == (0, 0)


def _swap(first: str, second: str, stop: Event) -> None:
    """Exchange two names, again and again: at no time is there none."""
    libc = ctypes.CDLL(None, use_errno=True)
    while not stop.is_set():
        for _ in range(1000):
            libc.renameat2(-100, first.encode(), -100, second.encode(), 2)


@contextmanager
def swapping(first: Path, second: Path) -> Generator[None]:
    context = get_context("fork")
    stop = context.Event()
    swapper = context.Process(target=_swap, args=(str(first), str(second), stop))
    swapper.start()
    try:
        yield
    finally:
        stop.set()
        swapper.join()


@pytest.mark.parametrize("what", ["folder", "file", "hard link"])
def test_what_is_swapped_for_a_link_meanwhile_leads_nowhere(what: str, open_folder: Path) -> None:
    place, file = victim(open_folder)
    workspace = open_folder / "workspace"
    workspace.mkdir()
    real, link = workspace / "real", open_folder / "link"
    if what == "folder":
        real.mkdir()
        (real / "file").write_text("")
        link.symlink_to(place)
    else:
        real.write_text("")
        if what == "file":
            link.symlink_to(file)
        else:
            link.hardlink_to(file)
    with swapping(real, link):
        given = [try_to_give(workspace, place, file) for _ in range(ROUNDS)]
    assert any(given)


def try_to_give(workspace: Path, place: Path, file: Path) -> bool:
    """Give it; whether that is done or refused, the victim keeps what is its own."""
    os.chown(workspace, 0, 0)  # not given yet
    try:
        access.hand_over(workspace, SANDBOX)
    except SandboxUnavailable:
        return False  # a folder was moved away: it is tried again at the next call
    finally:
        assert (owner(place), owner(file)) == (0, 0)
    return True


def test_a_folder_that_is_moved_out_meanwhile_takes_nobody_along(open_folder: Path) -> None:
    """Coming back up from a folder is not to arrive in the folder that it was moved to."""
    place, file = victim(open_folder)
    workspace = open_folder / "workspace"
    (workspace / "outer" / "inner").mkdir(parents=True)
    (place / "inner").mkdir()
    with swapping(workspace / "outer" / "inner", place / "inner"):
        given = [try_to_give(workspace, place, file) for _ in range(ROUNDS)]
    assert any(given)
