"""Routes of sessions (contract section 8)."""

from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import ASGIApp

from corral.api.call import Call, answer, raw_page
from corral.api.describe import (
    ARCHIVED,
    PAGE,
    Deleted,
    PageOf,
    choices,
    integer,
    limit,
    order,
    text,
    times,
)
from corral.api.principals import ANYONE, APPLICATION
from corral.api.reach import session_row
from corral.api.routing import Route
from corral.session.budget import budget_object
from corral.session.records import SessionChange, SessionFilter
from corral.session.shown import Row, session_object
from corral.session.spending import Spending
from corral.wire import metadata as meta
from corral.wire import pagination
from corral.wire.environments import check_reach
from corral.wire.errors import InvalidRequest
from corral.wire.fields import given
from corral.wire.overrides import updated_snapshot
from corral.wire.pagination import Order, check_within
from corral.wire.sessions import BudgetLimit, CreateSession, Session, SessionStatus, UpdateSession

LIST: Final = "sessions"
_STATUSES: Final[frozenset[str]] = frozenset(get_args(SessionStatus))


async def create(call: Call) -> ASGIApp:
    """``POST /v1/sessions``: all of it happens, or nothing."""
    params = await call.decode(CreateSession)
    await call.services.admission.backlog.check_sessions(params.initial_events or ())
    return answer(session_object(await call.services.session_creation.create(params)))


async def retrieve(call: Call) -> ASGIApp:
    """``GET /v1/sessions/{session_id}``."""
    return answer(session_object(await session_row(call)))


async def update(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}``."""
    params = await call.decode(UpdateSession)
    before = await session_row(call)
    environment = await call.services.environments.retrieve(before["environment_id"])

    def decide(row: Row, spent: Spending) -> SessionChange:
        if row["archived_at"] is not None:
            raise InvalidRequest("Cannot modify archived session")
        metadata = meta.patched(msgspec.json.decode(row["metadata"]), given(params.metadata, {}))
        agent: dict[str, Any] | msgspec.UnsetType = UNSET
        if params.agent is not UNSET:
            if row["status"] != "idle":
                raise InvalidRequest(
                    "agent: cannot be changed while the session is running. Send an interrupt event or wait "
                    "for the session to become idle."
                )
            agent = updated_snapshot(msgspec.json.decode(row["agent"]), params.agent)
            check_reach(environment.config, agent)
        budget = _changed_budget(params.budget, spent)
        return SessionChange(title=params.title, metadata=metadata, agent=agent, budget=budget)

    return answer(session_object(await call.services.sessions.update(before["id"], decide)))


def _changed_budget(
    asked: BudgetLimit | UnsetType | None, spent: Spending
) -> dict[str, Any] | UnsetType | None:
    """What to set the budget to (contract section 8.6): it can be changed or removed, never added."""
    if not isinstance(asked, BudgetLimit):
        return asked
    if spent.limit is None:
        raise InvalidRequest(
            "budget: can only be given when the session is created", error_code="budget_create_only"
        )
    if spent.unpriced:
        raise InvalidRequest(
            "budget: the session has used a model that no list price is available for, so its cost cannot be "
            "measured; remove the budget (null) to go on",
            error_code="model_not_budgetable",
        )
    if spent.covers(asked.cents):
        raise InvalidRequest(
            "budget.max_list_cost must be greater than the session's consumed list cost",
            error_code="budget_not_raised",
        )
    return budget_object(asked.cents)


async def archive(call: Call) -> ASGIApp:
    """``POST /v1/sessions/{session_id}/archive``."""
    return answer(session_object(await call.services.sessions.archive(call.params["session_id"])))


async def delete(call: Call) -> ASGIApp:
    """``DELETE /v1/sessions/{session_id}``."""
    session_id = call.params["session_id"]
    await call.services.sessions.delete(session_id)
    return answer({"id": session_id, "type": "session_deleted"})


async def list_sessions(call: Call) -> ASGIApp:
    """``GET /v1/sessions``: a list that can be paged both ways."""
    query = call.query
    order = query.order("desc")
    limit = query.limit(default=20, most=1000)
    cursor = pagination.decode(query.text("page"), LIST, (int, str), order=order)
    times = query.times()
    check_within(cursor, times)
    statuses = query.values("statuses", _STATUSES)
    agent_id = query.text("agent_id")
    version = query.integer("agent_version", least=1, most=2**31 - 1)
    narrow = SessionFilter(
        agent_id=agent_id,
        agent_version=version if agent_id is not None else None,
        statuses=statuses,
        created_gt=times.gt,
        created_gte=times.gte,
        created_lt=times.lt,
        created_lte=times.lte,
        deployment_id=query.text("deployment_id"),
        memory_store_id=query.text("memory_store_id"),
        include_archived=query.boolean("include_archived"),
    )
    backward = cursor is not None and cursor.before
    rows = await call.services.sessions.records.page(
        narrow,
        after=(pagination.moment_of(cursor), str(cursor.position[1])) if cursor else None,
        descending=(order == "desc") != backward,
        limit=limit + 1,
    )
    more, rows = len(rows) > limit, rows[:limit]
    if backward:
        rows.reverse()
    return raw_page(
        [msgspec.json.encode(session_object(row)) for row in rows],
        next_page=_cursor(rows[-1:], order, before=False) if more or backward else None,
        prev_page=_cursor(rows[:1], order, before=True) if (more if backward else cursor) else None,
    )


def _cursor(rows: list[Row], order: Order, *, before: bool) -> str | None:
    for row in rows:
        position = pagination.time_position(row["created_at"], row["id"])
        return pagination.encode(LIST, position, order=order, before=before)
    return None


_SESSION: Final = "/v1/sessions/{session_id}"

ROUTES = (
    Route(
        "POST",
        "/v1/sessions",
        APPLICATION,
        create,
        "Make a session: all of it, or nothing",
        takes=CreateSession,
        gives=Session,
    ),
    Route(
        "GET",
        "/v1/sessions",
        APPLICATION,
        list_sessions,
        "List sessions; can be paged both ways",
        query=(
            limit(most=1000),
            PAGE,
            order("desc"),
            *times(),
            choices("statuses", "Only sessions in these statuses.", _STATUSES),
            text("agent_id", "Only sessions of this agent."),
            integer("agent_version", "With `agent_id`: only of this version.", least=1, most=2**31 - 1),
            text("deployment_id", "Only sessions of this deployment."),
            text("memory_store_id", "Only sessions with this memory store."),
            ARCHIVED,
        ),
        gives=PageOf(Session, cursors=("next_page", "prev_page")),
    ),
    Route("GET", _SESSION, ANYONE, retrieve, "Look at a session", gives=Session),
    Route("POST", _SESSION, APPLICATION, update, "Change a session", takes=UpdateSession, gives=Session),
    Route("DELETE", _SESSION, APPLICATION, delete, "Delete a session", gives=Deleted("session_deleted")),
    Route("POST", _SESSION + "/archive", APPLICATION, archive, "Archive a session", gives=Session),
)
