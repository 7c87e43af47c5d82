"""Sessions and threads as the API shows them, made from their rows (contract sections 8.1 and 11.2). Pure."""

from datetime import datetime
from typing import Any

import msgspec

from corral.session.outcomes import evaluations
from corral.session.usage import shown_usage, thread_usage
from corral.wire.errors import NotFound
from corral.wire.session_resources import resource_object
from corral.wire.times import from_wire, to_wire

Row = dict[str, Any]


def not_found(session_id: str) -> NotFound:
    """The error for a session that does not exist, or not for this credential."""
    return NotFound(f"session {session_id} not found")


def thread_not_found(thread_id: str) -> NotFound:
    """The error for a thread that its session does not have."""
    return NotFound(f"thread {thread_id} not found")


def session_object(row: Row) -> dict[str, Any]:
    """The session as the API shows it (contract section 8.1)."""
    now: datetime = row["read_at"]
    usage = shown_usage(msgspec.json.decode(row["usage"]))
    if row["running_since"] is not None:
        running = max(0.0, (now - row["running_since"]).total_seconds())
        usage["active_seconds"] = round(usage["active_seconds"] + running, 3)
    end: datetime = row["archived_at"] or now
    return {
        "id": row["id"],
        "type": "session",
        "status": row["status"],
        "title": row["title"],
        "metadata": msgspec.json.decode(row["metadata"]),
        "environment_id": row["environment_id"],
        "deployment_id": row["deployment_id"],
        "agent": msgspec.json.decode(row["agent"]),
        "resources": _resources(row),
        "vault_ids": row["vault_ids"],
        "outcome_evaluations": _outcomes(row),
        "budget": budget(row),
        "stats": {
            "active_seconds": _all_active(row, usage["active_seconds"]),
            "duration_seconds": round((end - row["created_at"]).total_seconds(), 3),
        },
        "usage": usage,
        "created_at": to_wire(row["created_at"]),
        "updated_at": to_wire(row["updated_at"]),
        "archived_at": None if row["archived_at"] is None else to_wire(row["archived_at"]),
    }


def _resources(row: Row) -> list[dict[str, Any]]:
    return [
        resource_object(id, type, body, to_wire(from_wire(created)), to_wire(from_wire(updated)))
        for id, type, body, created, updated in row["resources"] or ()
    ]


def _all_active(row: Row, active: float) -> float:
    """The seconds that the threads have run in all: those of two that ran at once count twice."""
    total: float | None = row["threads_active"]
    return active if total is None else round(float(total), 3)


def thread_object(row: Row, thread: Row | None = None) -> dict[str, Any]:
    """A thread of a session as the API shows it (contract section 11.2).

    `thread` is its own row; a session that has its primary thread alone has none.
    """
    if thread is not None and thread["parent_thread_id"] is not None:
        return _child_object(row, thread)
    session = session_object(row)
    agent = {name: value for name, value in session["agent"].items() if name != "multiagent"}
    ran = row["last_seq"] > 0
    shown = {
        "type": "session_thread",
        "id": row["primary_thread_id"],
        "session_id": row["id"],
        "parent_thread_id": None,
        "agent": agent,
        "status": session["status"],
        "workflow_run_id": None,
        "stats": {**session["stats"], "startup_seconds": 0.0} if ran else None,
        "usage": thread_usage(msgspec.json.decode(row["usage"]), session["usage"]),
        "created_at": session["created_at"],
        "updated_at": session["updated_at"],
        "archived_at": session["archived_at"],
    }
    if thread is not None:
        shown |= {"status": thread["status"], **_times_and_usage(thread, row["created_at"])}
    return shown


def _child_object(row: Row, thread: Row) -> dict[str, Any]:
    return {
        "type": "session_thread",
        "id": thread["id"],
        "session_id": row["id"],
        "parent_thread_id": thread["parent_thread_id"],
        "agent": msgspec.json.decode(thread["agent"]),
        "status": thread["status"],
        "workflow_run_id": None,
        **_times_and_usage(thread, thread["created_at"]),
        "created_at": to_wire(thread["created_at"]),
        "updated_at": to_wire(thread["updated_at"]),
        "archived_at": None if thread["archived_at"] is None else to_wire(thread["archived_at"]),
    }


def _times_and_usage(thread: Row, born: datetime) -> dict[str, Any]:
    usage = None if thread["usage"] is None else msgspec.json.decode(thread["usage"])
    if usage is None and thread["running_since"] is None:
        return {"stats": None, "usage": None}
    now: datetime = thread["read_at"]
    active: float = usage["active_seconds"] if usage is not None else 0.0
    if thread["running_since"] is not None:
        active = round(active + max(0.0, (now - thread["running_since"]).total_seconds()), 3)
    end: datetime = thread["archived_at"] or now
    stats = {
        "active_seconds": active,
        "duration_seconds": round((end - born).total_seconds(), 3),
        "startup_seconds": 0.0,
    }
    return {"stats": stats, "usage": None if usage is None else {**usage, "active_seconds": active}}


def _outcomes(row: Row) -> list[dict[str, Any]]:
    telling = [(seq, kind, body, to_wire(from_wire(at))) for seq, kind, body, at in row["outcomes"] or ()]
    return evaluations(telling, row["last_request"])


def budget(row: Row) -> dict[str, Any] | None:
    """The session's budget as the API shows it."""
    return None if row["budget"] is None else msgspec.json.decode(row["budget"])
