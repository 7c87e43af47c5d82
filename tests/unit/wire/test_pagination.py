"""Cursors and query parameters."""

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire import pagination
from corral.wire.environments import host_allowed
from corral.wire.errors import InvalidRequest
from corral.wire.metadata import patched
from corral.wire.query import Query, TimeRange

TIMES = st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@given(TIMES, st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=40))
def test_a_position_survives_its_cursor_to_the_microsecond(moment: datetime, item_id: str) -> None:
    text = pagination.encode("k", pagination.time_position(moment, item_id), order="asc", scope="s")
    cursor = pagination.decode(text, "k", (int, str), order="asc", scope="s")
    assert cursor
    assert (pagination.moment_of(cursor), cursor.position[1]) == (moment, item_id)


@given(st.text(max_size=100))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid page cursor"):
        pagination.decode(text, "k", (int, str), order="asc")


@pytest.mark.parametrize(
    ("kind", "scope", "order"), [("other", "s", "asc"), ("k", "other", "asc"), ("k", "s", "desc")]
)
def test_a_cursor_is_bound_to_its_list_its_owner_and_its_order(
    kind: str, scope: str, order: pagination.Order
) -> None:
    text = pagination.encode("k", (1,), order="asc", scope="s")
    with pytest.raises(InvalidRequest):
        pagination.decode(text, kind, (int,), order=order, scope=scope)


def test_a_made_up_time_is_refused() -> None:
    cursor = pagination.decode(
        pagination.encode("k", (2**62, "x"), order="asc"), "k", (int, str), order="asc"
    )
    assert cursor
    with pytest.raises(InvalidRequest):
        pagination.moment_of(cursor)


def test_lists_come_with_and_without_brackets_and_once_each() -> None:
    query = Query([("types[]", "a"), ("types[]", "b"), ("types", "a")])
    assert query.values("types", {"a", "b"}) == ["a", "b"]
    assert Query([]).values("types", {"a"}) is None


def test_times_are_read_with_any_offset_and_an_unencoded_plus() -> None:
    query = Query([("created_at[gte]", "2026-10-10T02:00:00 02:00"), ("created_at[lt]", "2026-10-11")])
    bounds = query.times()
    assert bounds == TimeRange(gte=datetime(2026, 10, 10, tzinfo=UTC), lt=datetime(2026, 10, 11, tzinfo=UTC))
    assert bounds.holds(datetime(2026, 10, 10, tzinfo=UTC))
    assert not bounds.holds(datetime(2026, 10, 11, tzinfo=UTC))


@given(st.lists(st.tuples(st.sampled_from(["limit", "order", "created_at[gt]", "x", "t[]"]), st.text())))
def test_any_parameters_are_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    query = Query(pairs)
    for read in (
        lambda: query.limit(default=20, most=100),
        lambda: query.order("asc"),
        lambda: query.boolean("x"),
        lambda: query.text("x"),
        lambda: query.values("t", {"a"}),
        query.times,
    ):
        with suppress(InvalidRequest):
            read()


def test_metadata_is_patched_key_by_key() -> None:
    assert patched({"a": "1", "b": "2"}, {"a": None, "c": "3", "d": ""}) == {"b": "2", "c": "3", "d": ""}
    assert patched({"a": "1"}, {"a": ""}, empty_deletes=True) == {}


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("api.example.com", True),
        ("API.Example.com", True),
        ("a.internal.example.org", True),
        ("a.b.internal.example.org", True),
        ("internal.example.org", False),
        ("xinternal.example.org", False),
        ("example.com", False),
    ],
)
def test_a_wildcard_covers_sub_domains_at_any_depth_and_not_the_bare_domain(host: str, allowed: bool) -> None:
    assert host_allowed(host, ["api.example.com", "*.Internal.example.org"]) is allowed
