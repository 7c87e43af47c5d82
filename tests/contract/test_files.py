"""Files: upload, metadata, lists, content, deletion (contract section 18)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from anthropic import NotFoundError, PermissionDeniedError
from msgspec import structs

from corral.settings import Files
from corral.store.database import Database
from tests.contract.conftest import Api, running
from tests.contract.refusals import refused, undocumented

CSV = b"a,b\n1,2\n"


async def upload(api: Api, content: bytes = CSV, name: str = "data.csv", **fields: Any) -> Any:
    return await api.sdk.beta.files.upload(file=(name, content), **fields)


async def posted(api: Api, *parts: tuple[str, Any], **data: Any) -> httpx.Response:
    """An upload by plain HTTP."""
    return await api.http.post("/v1/files", files=list(parts), data=data)


async def expire(api: Api, file_id: str) -> None:
    await api.database.execute(
        "update files set expires_at = now() - interval '1 second' where id = %s", (file_id,)
    )


async def make_downloadable(api: Api, file_id: str) -> None:
    await api.database.execute("update files set downloadable = true where id = %s", (file_id,))


async def test_an_upload_is_shown_as_documented(api: Api) -> None:
    file = await upload(api)
    assert undocumented(file) == []
    assert file.id.startswith("file_01")
    assert (file.type, file.filename, file.mime_type, file.size_bytes) == ("file", "data.csv", "text/csv", 8)
    assert (file.downloadable, file.expires_at, file.scope) == (False, None, None)
    assert await api.sdk.beta.files.retrieve_metadata(file.id) == file


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("/root/.ssh/id_rsa", "id_rsa"),
        ("C:\\Users\\me\\notes.txt", "notes.txt"),
        ("résumé 한글.txt", "résumé 한글.txt"),
        ("..", "unnamed.txt"),
        ("folder/", "unnamed.txt"),
    ],
)
async def test_only_the_last_component_of_a_filename_is_kept(api: Api, sent: str, kept: str) -> None:
    response = await posted(api, ("file", (sent, b"hello", "text/plain")))
    assert response.status_code == 200, response.text
    assert response.json()["filename"] == kept


async def test_a_file_without_a_name_is_called_unnamed_with_the_extension_of_its_type(api: Api) -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"\r\nContent-Type: application/pdf\r\n\r\n'
        b"%PDF-1.7\r\n--x--\r\n"
    )
    headers = {"content-type": "multipart/form-data; boundary=x"}
    response = await api.http.post("/v1/files", content=body, headers=headers)
    assert response.json()["filename"] == "unnamed.pdf"


@pytest.mark.parametrize(
    ("name", "declared", "content", "mime"),
    [
        ("a.bin", "application/x-thing", b"x", "application/x-thing"),
        ("a.md", "application/octet-stream", b"x", "text/markdown"),
        ("a.md", 'text/html\r\nX: y; "', b"x", "text/markdown"),
        ("picture", "application/octet-stream", b"\x89PNG\r\n\x1a\n", "image/png"),
        ("what", "application/octet-stream", b"x", "application/octet-stream"),
        ("a.txt", "text/plain; charset=utf-8", b"x", "text/plain"),
    ],
)
async def test_the_media_type_is_as_declared_or_else_guessed(
    api: Api, name: str, declared: str, content: bytes, mime: str
) -> None:
    # By hand: a client library would refuse to send some of these.
    line = declared.replace("\r\n", "\n").encode()
    body = b'--x\r\nContent-Disposition: form-data; name="file"; filename="' + name.encode() + b'"\r\n'
    body += b"Content-Type: " + line.replace(b"\n", b" ") + b"\r\n\r\n" + content + b"\r\n--x--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=x"}
    response = await api.http.post("/v1/files", content=body, headers=headers)
    assert response.json()["mime_type"] == mime


async def test_an_empty_file_is_a_file(api: Api) -> None:
    assert (await upload(api, b"", "empty")).size_bytes == 0


@pytest.mark.parametrize(
    ("seconds", "taken"), [(3600, True), (7_776_000, True), (3599, False), (7_776_001, False)]
)
async def test_the_bounds_of_an_expiry(api: Api, seconds: int, taken: bool) -> None:
    if not taken:
        await refused(upload(api, expires_in_seconds=seconds), "expires_in_seconds", "3600", "7776000")
        return
    file = await upload(api, expires_in_seconds=seconds)
    assert (file.expires_at - file.created_at).total_seconds() == seconds


@pytest.mark.parametrize(
    ("parts", "data", "message"),
    [
        ([("expires_in_seconds", (None, "3600"))], {}, "file: Field required"),
        ([("file", ("a", b"1")), ("file", ("b", b"2"))], {}, "file: given more than once"),
        ([("file", ("a", b"1"))], {"color": "red"}, "color: Extra inputs are not permitted"),
        ([("file", ("a", b"1"))], {"expires_in_seconds": "soon"}, "expires_in_seconds: Input should be"),
        ([("file", ("a" * 256, b"1"))], {}, "filename must have at most 255"),
    ],
)
async def test_a_form_that_does_not_fit_is_refused_and_leaves_nothing(
    api: Api, parts: list[Any], data: dict[str, str], message: str
) -> None:
    response = await posted(api, *parts, **data)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]["message"]
    assert (await api.get("/v1/files")).json()["data"] == []
    assert await api.database.fetch("select id from blobs where state <> 'doomed'") == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"garbage"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\nhalf',
        ),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: attachment\r\n\r\na\r\n--x--"),
    ],
)
async def test_a_body_that_is_no_form_is_refused(api: Api, kind: str, body: bytes) -> None:
    response = await api.http.post("/v1/files", content=body, headers={"content-type": kind})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_file_that_is_too_large_is_refused_with_413(database: Database) -> None:
    async with running(database, files=Files(max_file_bytes=1000)) as api:
        assert (await upload(api, b"x" * 1000)).size_bytes == 1000
        declared = await posted(api, ("file", ("a", b"x" * 1001)))

        async def undeclared() -> AsyncIterator[bytes]:
            yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
            for _ in range(300):
                yield b"x" * 1000
            yield b"\r\n--x--\r\n"

        headers = {"content-type": "multipart/form-data; boundary=x"}
        streamed = await api.http.post("/v1/files", content=undeclared(), headers=headers)
        for response in (declared, streamed):
            assert response.status_code == 413
            assert response.json()["error"]["type"] == "request_too_large"
        assert len((await api.get("/v1/files")).json()["data"]) == 1


async def test_an_upload_beyond_the_quota_is_refused_until_there_is_room(database: Database) -> None:
    async with running(database, files=Files(quota_bytes=1500, removal_delay_seconds=0.001)) as api:
        file = await upload(api, b"x" * 1000)
        error = await refused(upload(api, b"x" * 600))
        assert error["details"]["error_code"] == "storage_quota_exceeded"
        await api.sdk.beta.files.delete(file.id)
        await api.services.files.blobs.sweep()
        await api.services.files.blobs.sweep()
        await upload(api, b"x" * 600)


async def test_a_large_file_arrives_whole(api: Api) -> None:
    content = bytes(range(256)) * 60_000  # 15 MB: several parts
    file = await upload(api, content, "large.bin")
    await make_downloadable(api, file.id)
    got = await api.sdk.beta.files.download(file.id)
    assert await got.read() == content


async def test_files_are_listed_newest_first_in_pages(api: Api) -> None:
    made = [(await upload(api, name=f"{number}")).id for number in range(5)]
    listed = [file.id async for file in api.sdk.beta.files.list(limit=2)]
    assert listed == made[::-1]
    page = (await api.get("/v1/files", params={"limit": 2})).json()
    assert set(page) == {"data", "next_page"}
    assert page["next_page"].startswith("page_")
    last = (await api.get("/v1/files", params={"limit": 5})).json()
    assert last["next_page"] is None


async def test_files_are_picked_by_id(api: Api) -> None:
    first, _, third = [await upload(api) for _ in range(3)]
    page = await api.sdk.beta.files.list(ids=[first.id, "file_01unknown", third.id, first.id])
    assert [file.id for file in page.data] == [third.id, first.id]
    assert page.next_page is None


@pytest.mark.parametrize(
    "query",
    [
        {"ids[]": ["file_1"], "limit": 5},
        {"ids[]": ["file_1"], "page": "page_x"},
        {"ids[]": [f"file_{number}" for number in range(101)]},
        {"limit": 1001},
        {"limit": -1},
        {"page": "page_nonsense"},
        {"before_id": "a", "after_id": "b"},
    ],
)
async def test_a_list_request_that_makes_no_sense_is_refused(api: Api, query: dict[str, Any]) -> None:
    assert (await api.get("/v1/files", params=query)).status_code == 400


async def test_a_list_of_a_hundred_ids_and_duplicates_is_taken(api: Api) -> None:
    ids = [f"file_{number}" for number in range(100)]
    response = await api.get("/v1/files", params={"ids[]": ids + ids[:20]})
    assert response.json() == {"data": [], "next_page": None}


async def test_early_clients_page_by_ids(api: Api) -> None:
    made = [(await upload(api, name=f"{number}")).id for number in range(5)][::-1]
    headers = {"anthropic-beta": "files-api-2025-04-14"}
    first = (await api.get("/v1/files", params={"limit": 2}, headers=headers)).json()
    assert (first["first_id"], first["last_id"], first["has_more"]) == (made[0], made[1], True)
    query = {"limit": 2, "after_id": first["last_id"]}
    second = (await api.get("/v1/files", params=query, headers=headers)).json()
    assert ([file["id"] for file in second["data"]], second["has_more"]) == (made[2:4], True)
    query = {"limit": 2, "before_id": second["data"][0]["id"]}
    back = (await api.get("/v1/files", params=query, headers=headers)).json()
    assert ([file["id"] for file in back["data"]], back["has_more"]) == (made[:2], False)


async def test_an_upload_cannot_be_downloaded(api: Api) -> None:
    file = await upload(api)
    error = await refused(api.sdk.beta.files.download(file.id), f"File '{file.id}' is not downloadable")
    assert error["details"]["error_code"] == "file_not_downloadable"


async def test_content_comes_as_an_attachment_that_no_browser_shows(api: Api) -> None:
    file = await upload(api, b"<script>", 'a "b" 한.html')
    await make_downloadable(api, file.id)
    response = await api.get(f"/v1/files/{file.id}/content")
    assert response.content == b"<script>"
    assert response.headers["content-type"].startswith("text/html")
    assert response.headers["content-length"] == "8"
    assert response.headers["content-disposition"].startswith("attachment; filename*=UTF-8''a%20")
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_content_of_an_expired_file_is_gone_and_its_metadata_stays(api: Api) -> None:
    file = await upload(api, expires_in_seconds=3600)
    await expire(api, file.id)
    for _ in range(2):
        error = await refused(api.sdk.beta.files.download(file.id), kind=NotFoundError)
        assert error["details"]["error_code"] == "file_expired"
        assert (await api.sdk.beta.files.retrieve_metadata(file.id)).size_bytes == len(CSV)
        await api.services.files.blobs.sweep()


async def test_thirty_days_after_its_expiry_a_file_is_forgotten(api: Api) -> None:
    file = await upload(api, expires_in_seconds=3600)
    await api.database.execute("update files set expires_at = now() - interval '31 days'")
    await api.services.files.blobs.sweep()
    await refused(api.sdk.beta.files.retrieve_metadata(file.id), kind=NotFoundError)


async def test_a_deleted_file_is_gone(api: Api) -> None:
    file = await upload(api)
    deleted = await api.sdk.beta.files.delete(file.id)
    assert (deleted.id, deleted.type) == (file.id, "file_deleted")
    for request in (
        api.sdk.beta.files.retrieve_metadata,
        api.sdk.beta.files.download,
        api.sdk.beta.files.delete,
    ):
        await refused(request(file.id), file.id, kind=NotFoundError)


async def test_uploads_at_the_same_time_do_not_mix(api: Api) -> None:
    contents = [bytes([number]) * 700_000 for number in range(8)]
    files = await asyncio.gather(*(upload(api, content, f"{content[0]}") for content in contents))
    for file, content in zip(files, contents, strict=True):
        await make_downloadable(api, file.id)
        assert await (await api.sdk.beta.files.download(file.id)).read() == content


async def test_workers_have_no_part_in_the_files_api(api: Api) -> None:
    environment = await api.environment()
    file = await upload(api)
    async with api.client(await api.environment_key(environment["id"])) as worker:
        for request in (worker.beta.files.retrieve_metadata(file.id), worker.beta.files.delete(file.id)):
            await refused(request, "may not be used", kind=PermissionDeniedError)


async def test_strict_mode_asks_for_no_beta_header_on_files(strict_api: Api) -> None:
    file = await upload(strict_api)
    assert (await strict_api.sdk.beta.files.retrieve_metadata(file.id)).id == file.id


async def test_files_are_kept_in_the_folder_that_the_setting_names(
    database: Database, open_folder: Any
) -> None:
    settings = structs.replace(Files(), store=str(open_folder / "files"))
    async with running(database, files=settings) as api:
        await upload(api)
    kept = [path for path in (open_folder / "files").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in kept] == [CSV]
    assert (open_folder / "files").stat().st_mode & 0o777 == 0o700
