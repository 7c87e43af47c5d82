"""Blobs: bytes and rows stay in step, whatever is cut off where."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from obstore.store import MemoryStore
from starlette.requests import ClientDisconnect

from corral.resources.blobs import Blob, BlobLimits, Blobs, open_store
from corral.resources.files import Files
from corral.store.database import Database
from corral.wire.errors import InternalError, InvalidRequest, RequestTooLarge

AT_ONCE = 0.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "files"


def blobs_on(database: Database, folder: Path, **limits: Any) -> Blobs:
    store, local = open_store(str(folder))
    wanted: Any = {"removal_delay": AT_ONCE, **limits}
    return Blobs(database, store, local, BlobLimits(**wanted))


@pytest_asyncio.fixture
async def blobs(database: Database, folder: Path) -> Blobs:
    return blobs_on(database, folder)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def broken(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    raise ClientDisconnect


async def file_of(blobs: Blobs, files: Files, content: bytes = b"hello") -> tuple[str, Blob]:
    blob = await blobs.receive(pieces(content))
    return (await files.create(blob, filename="a.txt", declared_type=None)).id, blob


def on_disk(folder: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def states(database: Database) -> list[str]:
    return [row["state"] for row in await database.fetch("select state from blobs order by id")]


async def test_bytes_come_back_as_they_went_in(blobs: Blobs) -> None:
    parts = [bytes([number]) * 700_000 for number in range(20)]
    blob = await blobs.receive(pieces(*parts))
    assert (blob.size_bytes, blob.head) == (14_000_000, b"\0" * 4096)
    assert await blobs.read(blob.id, 20_000_000) == b"".join(parts)
    assert await blobs.read(blob.id, 10) == b"\0" * 10


async def test_an_upload_that_breaks_off_leaves_no_bytes(
    blobs: Blobs, folder: Path, database: Database
) -> None:
    with pytest.raises(ClientDisconnect):
        await blobs.receive(broken(b"x" * 12_000_000))
    assert on_disk(folder) == []
    await blobs.sweep()
    assert await states(database) == []


async def test_too_many_bytes_are_refused_as_they_come(database: Database, folder: Path) -> None:
    blobs = blobs_on(database, folder, most=1000)
    with pytest.raises(RequestTooLarge):
        await blobs.receive(broken(b"x" * 600, b"x" * 600))
    assert on_disk(folder) == []


async def test_the_quota_counts_what_files_refer_to(database: Database, folder: Path) -> None:
    blobs = blobs_on(database, folder, quota=10)
    files = Files(database, blobs)
    await file_of(blobs, files, b"12345678")
    with pytest.raises(InvalidRequest, match="quota"):
        await blobs.receive(pieces(b"123"))
    await file_of(blobs, files, b"12")


async def test_bytes_that_no_file_came_of_are_kept_for_a_day_and_removed_then(
    blobs: Blobs, folder: Path, database: Database
) -> None:
    await blobs.receive(pieces(b"orphan"))
    assert await blobs.sweep() == 0
    await database.execute("update blobs set created_at = created_at - interval '25 hours'")
    assert await blobs.sweep() == 1
    assert on_disk(folder) == []
    assert await states(database) == []


async def test_what_a_killed_server_leaves_of_an_upload_is_removed_too(
    blobs: Blobs, folder: Path, database: Database
) -> None:
    blob = await blobs.receive(pieces(b"half"))
    [path] = [path for path in folder.rglob("*") if path.is_file()]
    # So the store names what is not finished.
    path.rename(path.with_name(f"{path.name}#1"))
    await database.execute("update blobs set created_at = created_at - interval '25 hours'")
    assert await blobs.sweep() == 1
    assert on_disk(folder) == []
    assert blob.size_bytes == 4


async def test_bytes_go_some_time_after_the_last_file_that_referred_to_them(
    database: Database, folder: Path
) -> None:
    blobs = blobs_on(database, folder, removal_delay=3600.0)
    files = Files(database, blobs)
    file_id, _ = await file_of(blobs, files)
    await files.delete(file_id)
    for _ in range(2):
        assert await blobs.sweep() == 0
    assert on_disk(folder) == [b"hello"]
    await database.execute("update blobs set unreferenced_since = unreferenced_since - interval '2 hours'")
    assert await blobs.sweep() == 1
    assert on_disk(folder) == []


async def test_bytes_that_a_copy_shares_stay_until_the_copy_goes(
    blobs: Blobs, folder: Path, database: Database
) -> None:
    files = Files(database, blobs)
    file_id, blob = await file_of(blobs, files)
    await database.execute(
        "insert into files (id, blob_id, filename, mime_type, size_bytes) values ('copy', %s, 'c', 'a/b', 5)",
        (blob.id,),
    )
    await files.delete(file_id)
    for _ in range(3):
        assert await blobs.sweep() == 0
    assert on_disk(folder) == [b"hello"]
    await files.delete("copy")
    assert await blobs.sweep() == 1


async def test_a_removal_that_was_cut_off_is_finished_by_the_next_sweep(
    blobs: Blobs, folder: Path, database: Database
) -> None:
    files = Files(database, blobs)
    doomed = [await file_of(blobs, files) for _ in range(2)]
    for file_id, _ in doomed:
        await files.delete(file_id)
    await database.execute("update blobs set state = 'doomed'")
    # Of one the bytes were removed already, of the other not yet.
    next(path for path in folder.rglob("*") if path.is_file()).unlink()
    assert await blobs.sweep() == 2
    assert on_disk(folder) == []


async def test_the_database_keeps_the_row_of_bytes_that_a_file_refers_to(
    blobs: Blobs, database: Database
) -> None:
    _, blob = await file_of(blobs, Files(database, blobs))
    with pytest.raises(Exception, match="violates foreign key"):
        await database.execute("delete from blobs where id = %s", (blob.id,))


async def test_bytes_that_are_missing_from_the_store_are_the_servers_fault(
    blobs: Blobs, folder: Path, database: Database
) -> None:
    files = Files(database, blobs)
    file_id, _ = await file_of(blobs, files)
    await database.execute("update files set downloadable = true")
    next(path for path in folder.rglob("*") if path.is_file()).unlink()
    with pytest.raises(InternalError):
        async with files.downloading(file_id):
            pass


def test_a_store_is_a_folder_that_nobody_else_may_enter(tmp_path: Path) -> None:
    for name, address in (("plain", str(tmp_path / "plain")), ("url", f"file://{tmp_path}/url")):
        _, folder = open_store(address)
        assert folder is not None
        assert folder == tmp_path / name
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("address", ["ftp://host/files", "s3://", "nonsense://x"])
def test_an_address_that_is_no_store_is_refused_by_name(address: str) -> None:
    with pytest.raises(ValueError, match=r"files\.store"):
        open_store(address)


@pytest.mark.parametrize(
    ("address", "variables"),
    [
        ("s3://bucket/prefix", {"AWS_REGION": "eu-central-1"}),
        ("gs://bucket/prefix", {}),
        ("az://container/prefix", {"AZURE_STORAGE_ACCOUNT_NAME": "account"}),
    ],
)
def test_object_stores_are_opened_by_their_address(
    address: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store, folder = open_store(address)
    assert folder is None
    assert store is not None


async def test_a_store_that_is_no_folder_serves_as_well(database: Database) -> None:
    blobs = Blobs(database, MemoryStore(), None, BlobLimits(removal_delay=AT_ONCE))
    files = Files(database, blobs)
    file_id, blob = await file_of(blobs, files, b"x" * 12_000_000)
    assert len(await blobs.read(blob.id, 20_000_000)) == 12_000_000
    await files.delete(file_id)
    await blobs.sweep()
    assert await blobs.sweep() + len(await states(database)) <= 1
    with pytest.raises(FileNotFoundError):
        await blobs.read(blob.id, 1)
