"""All that serves files, put together from the settings: one place for the server and for tests."""

import asyncio
from dataclasses import dataclass

from corral.resources.blobs import BlobLimits, Blobs, open_store
from corral.resources.file_sources import FileSources
from corral.resources.files import Files
from corral.resources.outputs import OutputLimits, Outputs
from corral.resources.repositories import AttachedRepositories
from corral.resources.session_resources import SessionResources
from corral.settings import Files as FilesSettings
from corral.store.database import Database


@dataclass(frozen=True, slots=True)
class FileServices:
    """The services of files on one database and one blob store."""

    blobs: Blobs
    files: Files
    outputs: Outputs
    sources: FileSources
    session_resources: SessionResources


async def open_file_services(
    database: Database, settings: FilesSettings, repositories: AttachedRepositories | None = None
) -> FileServices:
    """The services that the settings ask for.

    Raises:
        ValueError: the setting ``files.store`` is no address of a store.
        OSError: its folder cannot be made.
    """
    store, folder = await asyncio.to_thread(open_store, settings.store)
    limits = BlobLimits(
        most=settings.max_file_bytes,
        quota=settings.quota_bytes,
        removal_delay=settings.removal_delay_seconds,
    )
    blobs = Blobs(database, store, folder, limits)
    files = Files(database, blobs)
    return FileServices(
        blobs=blobs,
        files=files,
        outputs=Outputs(
            database,
            files,
            OutputLimits(settings.max_session_outputs, settings.max_session_outputs_bytes),
        ),
        sources=FileSources(files),
        session_resources=SessionResources(database, files, repositories),
    )
