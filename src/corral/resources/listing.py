"""Lists ordered by time of creation, newest first: where a page begins, and the cursor to the next one."""

from collections.abc import Sequence
from datetime import datetime

from psycopg.rows import DictRow

from corral.wire import pagination
from corral.wire.pagination import Cursor, Page

# After every possible row in the descending order of (created_at, id).
FIRST: tuple[datetime | None, str | None] = (None, None)


def start(cursor: Cursor | None) -> tuple[datetime | None, str | None]:
    """The ``(created_at, id)`` below which a page begins; two Nones for the first page."""
    if cursor is None:
        return FIRST
    return pagination.moment_of(cursor), str(cursor.position[1])


def split(
    rows: Sequence[DictRow], page: Page, kind: str, *, scope: str = "", key: str = "id"
) -> tuple[list[DictRow], str | None]:
    """The page's rows, of ``page.limit + 1`` fetched ones, and the cursor to the next page."""
    if len(rows) <= page.limit:
        return list(rows), None
    kept = list(rows[: page.limit])
    last = kept[-1]
    position = pagination.time_position(last["created_at"], last[key])
    return kept, pagination.encode(kind, position, order=page.order, scope=scope)
