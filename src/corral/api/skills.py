"""Routes of skills and their versions (contract section 17).

A worker may look at and download the versions of the skills that its sessions have, and nothing else here.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, Final

from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PAGE, Bytes, Form, PageOf, choice, limit
from corral.api.download import Download
from corral.api.multipart import FormEvent, PartStart, drain, form_events, part_bytes, part_text
from corral.api.principals import ANYONE, APPLICATION, ApiKey, EnvironmentKey, PoolKey, WorkToken
from corral.api.routing import Route
from corral.resources import skills
from corral.resources.skill_packages import Package, SkillUpload
from corral.resources.skills import SOURCES
from corral.wire import pagination
from corral.wire.archives import too_large
from corral.wire.errors import InvalidRequest, RequestTooLarge
from corral.wire.pagination import Listing, Page
from corral.wire.skills import (
    DISPLAY_NAME_LENGTH,
    LIMITS,
    Skill,
    SkillDeleted,
    SkillVersion,
    SkillVersionDeleted,
    check_display_name,
)

_LIMIT: Final = 1000
# What a form adds to its files: for each part the boundary, the headers and the path.
_FORM_BYTES: Final = 1024 * (LIMITS.entries + 2)
_FIELD: Final = "files[]"
# Each character may take four bytes.
_DISPLAY_NAME_BYTES: Final = 4 * DISPLAY_NAME_LENGTH


async def create(call: Call) -> ASGIApp:
    """``POST /v1/skills``: the skill and its first version."""
    async with _received(call, named=True) as (package, display_name):
        return answer(await call.services.skills.create(package, display_name))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/skills/{skill_id}``."""
    return answer(await call.services.skills.retrieve(call.params["skill_id"]))


async def list_skills(call: Call) -> ASGIApp:
    """``GET /v1/skills``."""
    source = call.query.text("source", longest=64)
    if source not in (None, *SOURCES):
        raise InvalidRequest(f'source: "{source}" is not a valid value; it is one of {", ".join(SOURCES)}')
    page = _page(call, skills.LIST, (int, str))
    return _answer_list(call, await call.services.skills.list(page, source=source))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/skills/{skill_id}``: all versions go with it."""
    skill_id = call.params["skill_id"]
    await call.services.skills.delete(skill_id)
    return answer(SkillDeleted(id=skill_id))


async def create_version(call: Call) -> ASGIApp:
    """``POST /v1/skills/{skill_id}/versions``: the whole folder anew."""
    skill_id = call.params["skill_id"]
    # Before anything is received for a skill that is not there.
    await call.services.skills.retrieve(skill_id)
    async with _received(call, named=False) as (package, _):
        return answer(await call.services.skills.create_version(skill_id, package))


async def list_versions(call: Call) -> ASGIApp:
    """``GET /v1/skills/{skill_id}/versions``."""
    skill_id = call.params["skill_id"]
    page = _page(call, skills.VERSIONS, (int,), scope=skill_id)
    return _answer_list(call, await call.services.skills.versions(skill_id, page))


async def retrieve_version(call: Call) -> ASGIApp:
    """``GET /v1/skills/{skill_id}/versions/{version}``; ``latest`` names the newest."""
    skill_id = await _reached(call)
    return answer(await call.services.skills.retrieve_version(skill_id, call.params["version"]))


async def delete_version(call: Call) -> ASGIApp:
    """``DELETE /v1/skills/{skill_id}/versions/{version}``."""
    skill_id, version = call.params["skill_id"], call.params["version"]
    return answer(SkillVersionDeleted(id=await call.services.skills.delete_version(skill_id, version)))


async def download(call: Call) -> ASGIApp:
    """``GET /v1/skills/{skill_id}/versions/{version}/content``: a zip archive, the same each time."""
    skill_id = await _reached(call)
    stack = AsyncExitStack()
    content = await stack.enter_async_context(
        call.services.skills.downloading(skill_id, call.params["version"])
    )
    return Download(
        stack,
        content.pieces,
        size=content.size_bytes,
        media_type="application/zip",
        filename=f"{content.name}.zip",
    )


async def _reached(call: Call) -> str:
    """The skill in the path, checked against the caller."""
    skill_id, reach = call.params["skill_id"], call.services.skill_reach
    match call.principal:
        case ApiKey():
            pass
        case WorkToken(claim=claim):
            await reach.check(skill_id, session_id=claim.session_id)
        case EnvironmentKey(environment_id=environment_id):
            await reach.check(skill_id, environment_id=environment_id)
        case PoolKey():
            await reach.check(skill_id, pool=True)
    return skill_id


@asynccontextmanager
async def _received(call: Call, *, named: bool) -> AsyncGenerator[tuple[Package, str | None]]:
    """The skill that a form holds, and its display name where the form may have one (`named`)."""
    body = call.http.stream()
    try:
        declared = call.http.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > LIMITS.total_bytes + _FORM_BYTES:
            raise too_large(LIMITS.total_bytes)
        with SkillUpload(LIMITS) as upload:
            display_name = await _read(call, body, upload, named=named)
            async with upload.packaged() as package:
                yield package, display_name
    except RequestTooLarge:
        await drain(body)
        raise


async def _read(call: Call, body: AsyncIterator[bytes], upload: SkillUpload, *, named: bool) -> str | None:
    display_name: str | None = None
    content_type = call.http.headers.get("content-type", "")
    # A part for each file, and the name.
    async with aclosing(form_events(content_type, body, field=_FIELD, parts=LIMITS.entries + 1)) as events:
        async for event in events:
            if not isinstance(event, PartStart):
                continue
            match event.name:
                case "files[]" | "files":
                    await _take(upload, event, events)
                # The second is what early clients send.
                case "display_name" | "display_title" if named:
                    if display_name is not None:
                        raise InvalidRequest(f"{event.name}: given more than once")
                    sent = await part_text(events, event.name, _DISPLAY_NAME_BYTES)
                    display_name = check_display_name(sent)
                case other:
                    raise InvalidRequest(f"{other[:100]}: Extra inputs are not permitted")
    return display_name


async def _take(upload: SkillUpload, part: PartStart, events: AsyncIterator[FormEvent]) -> None:
    if not part.filename:
        raise InvalidRequest("files: each part must have a filename, such as `my-skill/SKILL.md`")
    await upload.add(part.filename, part_bytes(events))


def _page(call: Call, kind: str, shape: tuple[type, ...], *, scope: str = "") -> Page:
    limit = call.query.limit(default=20, most=_LIMIT)
    after = pagination.decode(call.query.text("page"), kind, shape, order="desc", scope=scope)
    return Page(limit=limit, order="desc", after=after)


def _answer_list(call: Call, listed: Listing) -> ASGIApp:
    """A page; early clients get the field by which they know that there is more as well."""
    page: dict[str, Any] = {"data": listed.data, "next_page": listed.next_page}
    if "skills-2025-" in call.http.headers.get("anthropic-beta", ""):
        page["has_more"] = listed.next_page is not None
    return answer(page)


_SKILL: Final = "/v1/skills/{skill_id}"
_VERSIONS: Final = _SKILL + "/versions"
_VERSION: Final = _VERSIONS + "/{version}"

_DISPLAY_NAME: Final = {"type": "string", "minLength": 1, "maxLength": DISPLAY_NAME_LENGTH}
_LISTED: Final = (limit(most=_LIMIT), PAGE)
# What early clients turn pages by.
_TURNING: Final = {"has_more": {"type": "boolean"}}

ROUTES = (
    Route(
        "POST",
        "/v1/skills",
        APPLICATION,
        create,
        "Upload a skill",
        takes=Form(
            files=(_FIELD,), fields={"display_name": _DISPLAY_NAME}, required=(_FIELD,), repeated=True
        ),
        gives=Skill,
    ),
    Route(
        "GET",
        "/v1/skills",
        APPLICATION,
        list_skills,
        "List skills, newest first",
        query=(*_LISTED, choice("source", "Only skills that come from there.", SOURCES)),
        gives=PageOf(Skill, extra=_TURNING),
    ),
    Route("GET", _SKILL, APPLICATION, retrieve, "Look at a skill", gives=Skill),
    Route("DELETE", _SKILL, APPLICATION, delete, "Delete a skill and its versions", gives=SkillDeleted),
    Route(
        "POST",
        _VERSIONS,
        APPLICATION,
        create_version,
        "Upload a new version of a skill",
        takes=Form(files=(_FIELD,), fields={}, required=(_FIELD,), repeated=True),
        gives=SkillVersion,
    ),
    Route(
        "GET",
        _VERSIONS,
        APPLICATION,
        list_versions,
        "List a skill's versions, newest first",
        query=_LISTED,
        gives=PageOf(SkillVersion, extra=_TURNING),
    ),
    Route("GET", _VERSION, ANYONE, retrieve_version, "Look at a version of a skill", gives=SkillVersion),
    Route(
        "DELETE",
        _VERSION,
        APPLICATION,
        delete_version,
        "Delete a version of a skill",
        gives=SkillVersionDeleted,
    ),
    Route("GET", _VERSION + "/content", ANYONE, download, "Download a version of a skill", gives=Bytes()),
)
