"""The rows of a session's threads: what their list shows, kept by the commits that change it (section 11.2).

The log is what counts; a row is what can be read without it. A session that has its primary thread alone has
no row: the session's own says it all.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from corral.session.commit import ThreadRow
from corral.session.events import NewEvent
from corral.session.state import SessionState, as_if
from corral.session.thread_state import ThreadState
from corral.session.usage import thread_usage_snapshot

_STATUS: Final = "session.thread_status_"
_CREATED: Final = "session.thread_created"


def rows_after(state: SessionState, events: Sequence[NewEvent], now: datetime) -> tuple[ThreadRow, ...]:
    """The rows of the threads that `events` change, as they are to be with them."""
    made = {event.body["session_thread_id"] for event in events if event.type == _CREATED}
    if not made and len(state.threads) < 2:
        return ()
    after = as_if(state, events, now)
    moved = {event.body["session_thread_id"] for event in events if event.type.startswith(_STATUS)}
    if len(state.threads) < 2:
        moved.add(after.primary)
    rows = [_row(after.threads[one], now, is_new=one in made) for one in dict.fromkeys([*moved, *made])]
    return tuple(rows)


def _row(thread: ThreadState, now: datetime, *, is_new: bool) -> ThreadRow:
    stopped = thread.status != "running" and (thread.active > 0 or not is_new)
    return ThreadRow(
        thread.id,
        thread.status,
        thread.parent,
        thread.agent if is_new else None,
        thread_usage_snapshot(thread, now) if stopped else None,
        thread.running_since,
    )
