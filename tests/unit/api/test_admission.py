"""Places are counted exactly, whatever becomes of those who held them."""

import pytest

from corral.api.admission import Backlog, Places
from corral.store.database import Database
from corral.wire.errors import Overloaded, RateLimited


def test_a_place_that_failed_is_free_again() -> None:
    places = Places("requests", 1, 0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), places.take("a"):
            raise ZeroDivisionError
    with places.take("a"):
        with pytest.raises(Overloaded), places.take("b"):
            pass
    with places.take("b"):
        pass


def test_a_refusal_takes_no_place() -> None:
    places = Places("requests", 10, 1)
    with places.take("a"):
        for _ in range(20):
            with pytest.raises(RateLimited), places.take("a"):
                pass
        with places.take("b"):
            pass


def test_changes_are_refused_while_too_many_wait_to_be_written() -> None:
    queued = 0
    backlog = Backlog(Database("dbname=none"), lambda: queued, most_queued=3, most_sessions=0)
    backlog.check_queue()
    queued = 3
    with pytest.raises(Overloaded) as refused:
        backlog.check_queue()
    assert refused.value.retry_after
    queued = 2
    backlog.check_queue()
