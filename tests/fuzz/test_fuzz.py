"""A short run of the fuzzing (`make fuzz` is the long one): three seeds, the same each time."""

import asyncio

import pytest

from corral.store.database import Database
from tests.contract.conftest import running
from tests.fuzz.fuzzing import Fuzzer, in_order
from tests.populated import populated

EXAMPLES = 2
"""Requests for each route that fit the document, and as many that break it."""


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_request_is_answered_otherwise_than_the_document_says(database: Database, seed: int) -> None:
    async with running(database) as api:
        fuzzer = Fuzzer(await populated(api), seed)
        found: list[str] = []
        for route in in_order():
            found += await asyncio.to_thread(fuzzer.faults, route, EXAMPLES)
    assert found == [], "\n".join(found)
    assert fuzzer.statuses[200] > fuzzer.sent / 10
