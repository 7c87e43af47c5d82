"""The files of a memory store on the worker's machine, in a folder where an agent does as it likes."""

import hashlib
import os
import socket
from pathlib import Path

import pytest

from corral.hands.worker.memory_folder import MemoryFolder
from corral.wire.errors import InvalidRequest


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> MemoryFolder:
    """An empty folder, with a secret beside it."""
    (tmp_path / "secret").write_text("token")
    made = MemoryFolder(tmp_path / "store")
    made.make()
    return made


def test_what_is_written_is_found_and_read(folder: MemoryFolder) -> None:
    folder.write("/a", b"1")
    folder.write("/deep/er/b.md", "é".encode())
    folder.write("/a", b"2")
    assert folder.look().files == {"/a": sha(b"2"), "/deep/er/b.md": sha("é".encode())}
    assert folder.read("/deep/er/b.md") == "é".encode()
    assert folder.read("/none") is None
    assert folder.read("/a/below") is None
    assert sorted(os.listdir(folder.root)) == ["a", "deep"]


def test_a_change_right_after_a_look_is_seen_though_size_and_time_are_the_same(folder: MemoryFolder) -> None:
    folder.write("/a", b"1")
    folder.look()
    before = (folder.root / "a").stat()
    with (folder.root / "a").open("r+b") as file:
        file.write(b"2")
    os.utime(folder.root / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert folder.look().files == {"/a": sha(b"2")}


def test_a_removed_file_takes_its_empty_folders_along(folder: MemoryFolder) -> None:
    folder.write("/a/b/c", b"1")
    folder.write("/a/d", b"1")
    folder.remove("/a/b/c")
    assert [str(path.relative_to(folder.root)) for path in folder.root.rglob("*")] == ["a", "a/d"]
    folder.remove("/a/b/c")
    folder.remove("/none/at/all")
    folder.remove("/a/d")
    assert folder.root.exists()
    assert list(folder.root.iterdir()) == []


def test_what_is_no_file_is_named_and_never_read(folder: MemoryFolder, tmp_path: Path) -> None:
    (folder.root / "link").symlink_to(tmp_path / "secret")
    (folder.root / "folder").symlink_to(tmp_path)
    os.mkfifo(folder.root / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder.root / "socket"))
    listener.close()
    local = folder.look()
    assert local.files == {}
    assert set(local.unfit) == {"/link", "/folder", "/pipe", "/socket"}
    for path in ("/link", "/folder/secret", "/pipe", "/socket"):
        assert folder.read(path) is None


def test_nothing_is_written_or_removed_through_a_link(folder: MemoryFolder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (folder.root / "folder").symlink_to(outside)
    (folder.root / "file").symlink_to(tmp_path / "secret")
    folder.remove("/folder/kept")
    folder.write("/file", b"new")
    folder.write("/folder/kept", b"new")
    folder.clear()
    assert (outside / "kept").read_text() == "kept"
    assert (tmp_path / "secret").read_text() == "token"


def test_a_file_in_the_place_of_a_folder_gives_way_and_a_full_folder_does_not(folder: MemoryFolder) -> None:
    folder.write("/a", b"1")
    folder.write("/a/b", b"2")
    assert folder.look().files == {"/a/b": sha(b"2")}
    with pytest.raises(OSError, match="not empty"):
        folder.write("/a", b"3")
    assert sorted(os.listdir(folder.root)) == ["a"]


def test_files_that_cannot_be_memories_are_named_with_the_reason(folder: MemoryFolder) -> None:
    (folder.root / "large").write_bytes(b"x" * 102_401)
    (folder.root / "line\nbreak").write_text("x")
    (folder.root / "cafe\u0301").write_text("x")
    Path(os.fsdecode(os.fsencode(folder.root) + b"/\xff")).write_text("x")
    deep = folder.root.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    unfit = folder.look().unfit
    assert "102401 bytes" in unfit["/large"]
    assert "U+000A" in unfit["/line\nbreak"]
    assert "Normalization" in unfit["/cafe\u0301"]
    assert "20 segments" in unfit["/" + "/".join([*["d"] * 20, "x"])]
    assert len(unfit) == 5


@pytest.mark.parametrize("path", ["/../secret", "secret", "/a/../../secret", "/", "/a//b", "/\0"])
def test_a_path_of_the_servers_that_leads_elsewhere_is_refused(folder: MemoryFolder, path: str) -> None:
    for attempt in (folder.read, folder.remove):
        with pytest.raises(InvalidRequest):
            attempt(path)
    with pytest.raises(InvalidRequest):
        folder.write(path, b"x")
