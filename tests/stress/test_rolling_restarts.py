"""Restarts under load, again and again: no request fails that the SDK does not repeat, none is made twice."""

from corral.testing import ScriptedModel
from tests.e2e.test_draining import rolling_restart
from tests.server_process import model_requests
from tests.stress.budgets import ROLLING_RESTARTS


async def test_many_restarts_fail_no_request_and_repeat_none(database_url: str) -> None:
    async with ScriptedModel() as model:
        budget = ROLLING_RESTARTS
        turns = await rolling_restart(database_url, model, restarts=budget.restarts, sessions=budget.sessions)
        assert model_requests(model) == turns
