"""Routes of files (contract section 18), and those by which a worker brings and takes a session's files."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PAGE, Bytes, Form, PageOf, limit, text, texts
from corral.api.download import Download
from corral.api.multipart import FormEvent, PartStart, drain, form_events, part_bytes, part_text
from corral.api.principals import APPLICATION, WorkToken
from corral.api.reach import session_of
from corral.api.routing import Route
from corral.resources.blobs import Blob
from corral.resources.files import Content, cursor_of
from corral.wire.errors import InvalidRequest, RequestTooLarge
from corral.wire.files import EXPIRES_LEAST, EXPIRES_MOST, IDS, File, FileDeleted, expiry
from corral.wire.pagination import Listing, Page

_LIMIT: Final = 1000
_TEXT_BYTES: Final = 64
# What a form adds to the bytes of its file.
_FORM_BYTES: Final = 64 * 1024


async def upload(call: Call) -> ASGIApp:
    """``POST /v1/files``: the bytes go to the store as they come; the file is there when all of them are."""
    most = call.services.files.blobs.limits.most
    await _refuse_declared(call, most + _FORM_BYTES)
    body = call.http.stream()
    try:
        file = await _Upload(call).read(body)
    except RequestTooLarge:
        await drain(body)
        raise
    return answer(file)


class _Upload:
    """One upload's form: a part ``file``, and maybe ``expires_in_seconds`` before or after it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._blob: Blob | None = None
        self._part: PartStart | None = None
        self._expires_in: int | None = None

    async def read(self, body: AsyncIterator[bytes]) -> File:
        files = self._call.services.files
        events = form_events(self._call.http.headers.get("content-type", ""), body)
        try:
            async for event in events:
                if isinstance(event, PartStart):
                    await self._take(event, events)
            if self._blob is None or self._part is None:
                raise InvalidRequest("file: Field required")
            return await files.create(
                self._blob,
                filename=self._part.filename,
                declared_type=self._part.content_type,
                expires_in=self._expires_in,
            )
        except BaseException:
            if self._blob is not None:
                await files.blobs.drop(self._blob.id)
            raise
        finally:
            await events.aclose()

    async def _take(self, part: PartStart, events: AsyncIterator[FormEvent]) -> None:
        match part.name:
            case "file" if self._blob is None:
                self._part = part
                self._blob = await self._call.services.files.blobs.receive(part_bytes(events))
            case "file":
                raise InvalidRequest("file: given more than once")
            case "expires_in_seconds":
                self._expires_in = expiry(await part_text(events, part.name, _TEXT_BYTES))
            case other:
                raise InvalidRequest(f"{other[:100]}: Extra inputs are not permitted")


async def _refuse_declared(call: Call, most: int) -> None:
    """Refuse a body by its declared length, before it is read."""
    declared = call.http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        await drain(call.http.stream())
        raise RequestTooLarge(f"file: exceeds the maximum of {call.services.files.blobs.limits.most} bytes")


async def list_files(call: Call) -> ASGIApp:
    """``GET /v1/files``."""
    query, files = call.query, call.services.files
    scope_id = query.text("scope_id", longest=128)
    ids = query.texts("ids", most=IDS)
    if ids is not None:
        if query.text("page") is not None or query.text("limit") is not None:
            raise InvalidRequest("ids: cannot be combined with page or limit")
        return _answer_list(call, await files.named(ids, scope_id=scope_id))
    limit = query.limit(default=20, most=_LIMIT)
    before, after = query.text("before_id", longest=128), query.text("after_id", longest=128)
    if before is not None or after is not None:
        if before is not None and after is not None:
            raise InvalidRequest("before_id: cannot be combined with after_id")
        found, more = await files.beyond(
            before or after or "", older=after is not None, limit=limit, scope_id=scope_id
        )
        return _answer_list(call, Listing(data=found, next_page=None), more=more)
    page = Page(limit=limit, order="desc", after=cursor_of(query.text("page")))
    listed = await files.list(page, scope_id=scope_id)
    if listed.next_page is not None:
        listed.next_page = f"page_{listed.next_page}"
    return _answer_list(call, listed)


def _answer_list(call: Call, listed: Listing, *, more: bool | None = None) -> ASGIApp:
    """A page; early clients get the fields by which they turn pages as well."""
    page: dict[str, Any] = {"data": listed.data, "next_page": listed.next_page}
    if more is not None or "files-api-" in call.http.headers.get("anthropic-beta", ""):
        page["has_more"] = listed.next_page is not None if more is None else more
        page["first_id"] = listed.data[0].id if listed.data else None
        page["last_id"] = listed.data[-1].id if listed.data else None
    return answer(page)


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/files/{file_id}``."""
    return answer(await call.services.files.retrieve(call.params["file_id"]))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/files/{file_id}``."""
    file_id = call.params["file_id"]
    await call.services.files.delete(file_id)
    return answer(FileDeleted(id=file_id))


async def download(call: Call) -> ASGIApp:
    """``GET /v1/files/{file_id}/content``."""
    stack = AsyncExitStack()
    content = await stack.enter_async_context(call.services.files.downloading(call.params["file_id"]))
    return _download(content, stack)


async def deliver(call: Call) -> ASGIApp:
    """``GET /corral/v1/sessions/{session_id}/files/{file_id}/content``: a mounted file, for the worker."""
    session_id = await session_of(call)
    stack = AsyncExitStack()
    content = await stack.enter_async_context(
        call.services.files.delivering(session_id, call.params["file_id"])
    )
    return _download(content, stack)


def _download(content: Content, stack: AsyncExitStack) -> Download:
    file = content.file
    return Download(
        stack, content.pieces, size=file.size_bytes, media_type=file.mime_type, filename=file.filename
    )


async def collect(call: Call) -> ASGIApp:
    """``POST /corral/v1/sessions/{session_id}/outputs?path=``: a file that a session's agent has put out.

    The body is the file. An unchanged file keeps its id; a changed one replaces the file of the same path.
    """
    session_id = await session_of(call)
    outputs = call.services.outputs
    path = outputs.admitted_path(call.query.text("path"))
    await _refuse_declared(call, call.services.files.blobs.limits.most)
    async with _received(call) as blob:
        return answer(await outputs.put(session_id, path, blob))


@asynccontextmanager
async def _received(call: Call) -> AsyncGenerator[Blob]:
    blobs = call.services.files.blobs
    blob = await blobs.receive(call.http.stream())
    try:
        yield blob
    except BaseException:
        await blobs.drop(blob.id)
        raise


_WORKERS: Final = frozenset({WorkToken})
_SESSION: Final = "/corral/v1/sessions/{session_id}"

_EXPIRY: Final = {"type": "integer", "minimum": EXPIRES_LEAST, "maximum": EXPIRES_MOST}
# What early clients turn pages by.
_TURNING: Final = {
    "has_more": {"type": "boolean"},
    "first_id": {"type": ["string", "null"]},
    "last_id": {"type": ["string", "null"]},
}

ROUTES = (
    Route(
        "POST",
        "/v1/files",
        APPLICATION,
        upload,
        "Upload a file",
        takes=Form(files=("file",), fields={"expires_in_seconds": _EXPIRY}, required=("file",)),
        gives=File,
    ),
    Route(
        "GET",
        "/v1/files",
        APPLICATION,
        list_files,
        "List files, newest first",
        query=(
            limit(most=_LIMIT),
            PAGE,
            text("scope_id", "Only files of this session.", longest=128),
            texts("ids", "Only these files; not together with a page.", most=IDS),
            text("before_id", "The page that ends right before this file.", longest=128),
            text("after_id", "The page that begins right after this file.", longest=128),
        ),
        gives=PageOf(File, extra=_TURNING),
    ),
    Route("GET", "/v1/files/{file_id}", APPLICATION, retrieve, "Look at a file", gives=File),
    Route("DELETE", "/v1/files/{file_id}", APPLICATION, delete, "Delete a file", gives=FileDeleted),
    Route("GET", "/v1/files/{file_id}/content", APPLICATION, download, "Download a file", gives=Bytes()),
    Route(
        "GET",
        _SESSION + "/files/{file_id}/content",
        _WORKERS,
        deliver,
        "Bring a mounted file to its sandbox",
        gives=Bytes(),
    ),
    Route(
        "POST",
        _SESSION + "/outputs",
        _WORKERS,
        collect,
        "Take a file that an agent has put out",
        query=(text("path", "Where it lies, below the folder of outputs.", required=True),),
        takes=Bytes(),
        gives=File,
    ),
)
