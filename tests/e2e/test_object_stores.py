"""Files on an object store: a server whose blobs are in S3, which moto plays over HTTP."""

import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from anthropic import InternalServerError, NotFoundError

from corral.resources.blobs import BlobLimits, Blobs, open_store
from corral.settings import Files, Settings
from corral.testing import ScriptedModel
from tests.corral_server import Corral, running_corral
from tests.e2e.conftest import model as model
from tests.secret_managers import aws

LARGE = os.urandom(12_000_000)
"""More than two parts of an upload."""


@dataclass(frozen=True)
class Bucket:
    """A bucket of moto's S3."""

    address: str

    async def keys(self) -> list[str]:
        """What is in it."""
        async with httpx.AsyncClient(trust_env=False) as client:
            listed = await client.get(f"{self.address}/corral?list-type=2")
        return [part.partition("</Key>")[0] for part in listed.text.split("<Key>")[1:]]

    async def open(self) -> None:
        """Make it."""
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.put(f"{self.address}/corral")).is_success

    async def close(self) -> None:
        """Take it away, with all that is in it."""
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.post(f"{self.address}/moto-api/reset")).is_success


@pytest_asyncio.fixture
async def bucket(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bucket]:
    async with aws() as address:
        named = {
            "AWS_ACCESS_KEY_ID": "key-of-the-test",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": address,
            "AWS_ALLOW_HTTP": "true",
        }
        for name, value in named.items():
            monkeypatch.setenv(name, value)
        made = Bucket(address)
        await made.open()
        yield made


@pytest_asyncio.fixture
async def corral(database_url: str, model: ScriptedModel, bucket: Bucket) -> AsyncIterator[Corral]:
    files = Files(store="s3://corral/of-the-test")
    async with running_corral(database_url, model, settings=Settings(files=files), brains=False) as running:
        yield running


async def delivered(corral: Corral, session_id: str, file_id: str) -> bytes:
    """The digest of a session's file, as a worker gets it."""
    digest = hashlib.sha256()
    async with corral.services.files.delivering(session_id, file_id) as content:
        async for piece in content.pieces:
            digest.update(piece)
    return digest.digest()


async def test_what_is_uploaded_comes_back_and_goes_with_its_last_file(
    corral: Corral, bucket: Bucket
) -> None:
    files = corral.client.beta.files
    small = await files.upload(file=("a.txt", b"hello"))
    large = await files.upload(file=("b.bin", LARGE))
    assert (small.size_bytes, large.size_bytes) == (5, len(LARGE))
    assert len(await bucket.keys()) == 2
    assert all(key.startswith("of-the-test/") for key in await bucket.keys())

    session = await corral.session(resources=[{"type": "file", "file_id": large.id, "mount_path": "b.bin"}])
    [copy] = [entry async for entry in files.list(scope_id=session.id)]
    assert len(await bucket.keys()) == 2, "the session's file is the same bytes"
    assert await delivered(corral, session.id, copy.id) == hashlib.sha256(LARGE).digest()

    await files.delete(small.id)
    await files.delete(large.id)
    blobs = Blobs(corral.database, *open_store("s3://corral/of-the-test"), BlobLimits(removal_delay=0.0))
    await blobs.tidy()
    assert len(await bucket.keys()) == 1
    assert await delivered(corral, session.id, copy.id) == hashlib.sha256(LARGE).digest()


async def test_a_store_that_does_not_take_a_file_is_an_error_to_try_again(
    corral: Corral, bucket: Bucket
) -> None:
    await bucket.close()
    with pytest.raises(InternalServerError) as refused:
        await corral.client.beta.files.upload(file=("a.txt", b"hello"))
    assert refused.value.status_code == 529
    assert refused.value.response.headers["x-should-retry"] == "true"
    assert [entry async for entry in corral.client.beta.files.list()] == []
    await bucket.open()
    assert (await corral.client.beta.files.upload(file=("a.txt", b"hello"))).size_bytes == 5
    with pytest.raises(NotFoundError):
        await corral.client.beta.files.retrieve_metadata("file_unknown")
