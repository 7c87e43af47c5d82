"""Routes beyond the documented API: fork, export, import and verify sessions (docs/extensions.md)."""

from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import Bytes, Optional, text, texts
from corral.api.multipart import drain
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.extensions.archive import MEDIA_TYPE
from corral.extensions.importing import ImportWishes
from corral.session.shown import session_object
from corral.wire.chain import ChainReport, parse_head
from corral.wire.errors import RequestTooLarge
from corral.wire.forks import ForkSession, SessionOrigin
from corral.wire.sessions import Session

_SESSION: Final = "/v1/sessions/{session_id}"
_VAULTS: Final = 50


async def fork(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/fork``: a new session that begins as this one did."""
    params = await call.decode_optional(ForkSession)
    return answer(
        session_object(await call.services.extensions.forking.fork(call.params["session_id"], params))
    )


async def origin(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/origin``."""
    return answer(await call.services.extensions.origins.of(call.params["session_id"]))


async def verify(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/verify?head=``."""
    head = call.query.text("head", longest=128)
    kept = None if head is None else parse_head(head)
    return answer(await call.services.extensions.verifying.verify(call.params["session_id"], kept))


async def export(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}/export``: the session as one file."""
    session_id = call.params["session_id"]
    pieces = await call.services.extensions.exporting.export(session_id)
    headers = {
        "content-disposition": f'attachment; filename="{session_id}.tar.gz"',
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(pieces, media_type=MEDIA_TYPE, headers=headers)


async def import_session(call: Call) -> ASGIApp:
    """``POST /v1/sessions/import``: a session of such a file, which is the body."""
    wishes = ImportWishes(
        environment_id=call.query.text("environment_id", longest=128),
        vault_ids=call.query.texts("vault_ids", most=_VAULTS) or (),
    )
    body = call.http.stream()
    try:
        return answer(session_object(await call.services.extensions.importing.take(body, wishes)))
    except RequestTooLarge:
        await drain(body)
        raise


ROUTES = (
    Route(
        "POST",
        _SESSION + "/fork",
        APPLICATION,
        fork,
        "Extension: make a session whose log is a copy of this one's, up to any event",
        takes=Optional(ForkSession),
        gives=Session,
    ),
    Route(
        "GET",
        _SESSION + "/origin",
        APPLICATION,
        origin,
        "Extension: where a forked or imported session comes from",
        gives=SessionOrigin,
    ),
    Route(
        "GET",
        _SESSION + "/verify",
        APPLICATION,
        verify,
        "Extension: whether a session's log is what was written",
        query=(text("head", "A head that was kept, as SEQ:LINK.", longest=128),),
        gives=ChainReport,
    ),
    Route(
        "GET",
        _SESSION + "/export",
        APPLICATION,
        export,
        "Extension: a session as one file",
        gives=Bytes(),
    ),
    Route(
        "POST",
        "/v1/sessions/import",
        APPLICATION,
        import_session,
        "Extension: make a session of a file that was exported",
        query=(
            text("environment_id", "Where it goes; by default the environment it was in.", longest=128),
            texts("vault_ids", "The vaults that it gets.", most=_VAULTS),
        ),
        takes=Bytes(),
        gives=Session,
    ),
)
