"""Routes of user profiles, and the page that their enrolment addresses lead to (contract section 22).

The hosted service has end users enrol with its vendor. On a server of one's own there is nobody to enrol
with, so the address leads to a page of this very server that says so; it names no profile and needs no state.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from starlette.responses import HTMLResponse
from starlette.types import ASGIApp

from corral.api.call import Call, answer
from corral.api.describe import PAGED, Deleted, PageOf, Site, choice, order
from corral.api.principals import APPLICATION, OPEN
from corral.api.routing import Route
from corral.resources import user_profiles
from corral.wire import pagination
from corral.wire.errors import Conflict, InvalidRequest
from corral.wire.pagination import Page
from corral.wire.times import to_wire
from corral.wire.user_profiles import (
    ORDERS_BY,
    Address,
    CreateActionUrl,
    CreateUserProfile,
    Form,
    OrderBy,
    ShownUserProfile,
    UpdateUserProfile,
    form_of,
    shown,
)

_PROFILE: Final = "/v1/user_profiles/{user_profile_id}"
_ENROLLMENT: Final = "/enrollment/{until}"
_VALID: Final = timedelta(days=1)
"""How long an enrolment address leads anywhere."""
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Enrolment</title></head>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""


async def create(call: Call) -> ASGIApp:
    """``POST /v1/user_profiles``."""
    form = _form(call)
    profile = await call.services.user_profiles.create(await call.decode(CreateUserProfile), form)
    return answer(shown(profile, form))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/user_profiles/{user_profile_id}``."""
    profile = await call.services.user_profiles.retrieve(call.params["user_profile_id"])
    return answer(shown(profile, _form(call)))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/user_profiles/{user_profile_id}``."""
    form, params = _form(call), await call.decode(UpdateUserProfile)
    profile = await call.services.user_profiles.update(call.params["user_profile_id"], params, form)
    return answer(shown(profile, form))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/user_profiles/{user_profile_id}``."""
    profile_id = call.params["user_profile_id"]
    await call.services.user_profiles.delete(profile_id)
    return answer({"id": profile_id, "type": "user_profile_deleted"})


async def list_profiles(call: Call) -> ASGIApp:
    """``GET /v1/user_profiles``."""
    form, order, order_by = _form(call), call.query.order("desc"), _order_by(call)
    kind, shape = user_profiles.LIST, (int, str)
    if order_by == "name":
        kind, shape = user_profiles.BY_NAME, (int, str, str)
    page = Page(
        limit=call.query.limit(default=20, most=100),
        order=order,
        after=pagination.decode(call.query.text("page"), kind, shape, order=order),
    )
    listing = await call.services.user_profiles.list(page, order_by)
    listing.data = [shown(profile, form) for profile in listing.data]
    return answer(listing)


async def enrollment_url(call: Call) -> ASGIApp:
    """``POST /v1/user_profiles/{user_profile_id}/enrollment_url``: takes no body."""
    return await _address(call, "enrollment_url")


async def action_url(call: Call) -> ASGIApp:
    """``POST /v1/user_profiles/{user_profile_id}/action_urls``."""
    await call.decode(CreateActionUrl)
    return await _address(call, "user_profile_action_url")


async def enrollment(call: Call) -> ASGIApp:
    """``GET /enrollment/{until}``: the page that an enrolment address leads to until that second."""
    until = call.params["until"]
    if not until.isascii() or not until.isdigit() or int(until) < datetime.now(UTC).timestamp():
        text = "Ask whoever sent it to you for a new one."
        return HTMLResponse(_PAGE.format(title="This link has expired", text=text), 410)
    text = (
        "The service that sent you here runs its agents on a server of its own, which enrols nobody with "
        "anyone: there is nothing that you have to do, and nothing about you was recorded here."
    )
    return HTMLResponse(_PAGE.format(title="Nothing to enrol in", text=text))


async def _address(call: Call, kind: str) -> ASGIApp:
    await call.services.user_profiles.retrieve(call.params["user_profile_id"])
    expires = (datetime.now(UTC) + _VALID).replace(microsecond=0)
    base = str(call.http.base_url).rstrip("/")
    url = base + _ENROLLMENT.format(until=int(expires.timestamp()))
    return answer({"type": kind, "url": url, "expires_at": to_wire(expires)})


def _form(call: Call) -> Form:
    lines = call.http.headers.getlist("anthropic-beta")
    return form_of(value.strip() for line in lines for value in line.split(","))


def _order_by(call: Call) -> OrderBy:
    text = call.query.text("order_by", longest=16)
    if text is not None and text not in ORDERS_BY:
        raise InvalidRequest(f'order_by: "{text}" is not a valid value')
    return text or "created_at"


ROUTES = (
    Route(
        "POST",
        "/v1/user_profiles",
        APPLICATION,
        create,
        "Make a user profile",
        takes=CreateUserProfile,
        gives=ShownUserProfile,
        refuses=(Conflict,),
    ),
    Route(
        "GET",
        "/v1/user_profiles",
        APPLICATION,
        list_profiles,
        "List user profiles",
        query=(*PAGED, order("desc"), choice("order_by", "What to sort by.", ORDERS_BY)),
        gives=PageOf(ShownUserProfile),
    ),
    Route("GET", _PROFILE, APPLICATION, retrieve, "Look at a user profile", gives=ShownUserProfile),
    Route(
        "POST",
        _PROFILE,
        APPLICATION,
        update,
        "Change a user profile",
        takes=UpdateUserProfile,
        gives=ShownUserProfile,
        refuses=(Conflict,),
    ),
    Route(
        "DELETE",
        _PROFILE,
        APPLICATION,
        delete,
        "Delete a user profile",
        gives=Deleted("user_profile_deleted"),
    ),
    Route(
        "POST",
        _PROFILE + "/enrollment_url",
        APPLICATION,
        enrollment_url,
        "Get the address at which the person enrols",
        gives=Address,
    ),
    Route(
        "POST",
        _PROFILE + "/action_urls",
        APPLICATION,
        action_url,
        "Get the address of an action of the person",
        takes=CreateActionUrl,
        gives=Address,
    ),
    Route("GET", _ENROLLMENT, OPEN, enrollment, "The page of an enrolment", gives=Site((200, 410))),
)
