"""The models that a server lists, through both of the SDK's families of them."""

from typing import Any

import pytest
from anthropic import NotFoundError

from corral.testing.validation.models import MODEL_IDS
from tests.contract.conftest import Api
from tests.contract.refusals import refused, undocumented
from tests.corral_server import Corral


async def ids(listed: Any) -> list[str]:
    return [model.id async for model in listed]


async def test_the_providers_models_are_listed_in_its_order(corral: Corral) -> None:
    assert await ids(corral.client.models.list()) == list(MODEL_IDS)
    assert await ids(corral.client.beta.models.list()) == list(MODEL_IDS)


async def test_a_model_has_what_the_sdk_documents_and_no_more(api: Api) -> None:
    for models in (api.sdk.models, api.sdk.beta.models):
        model: Any = await models.retrieve("claude-opus-5-5")
        assert model.type == "model"
        assert (model.id, model.display_name, model.line) == ("claude-opus-5-5", "Claude Opus 5.5", "opus")
        assert (model.lifecycle, model.max_input_tokens, model.max_tokens) == ("active", 1_000_000, 128_000)
    assert undocumented(await api.sdk.beta.models.retrieve("claude-opus-5-5")) == []


async def test_a_dated_id_finds_its_model_and_an_unknown_one_is_not_found(api: Api) -> None:
    assert (await api.sdk.models.retrieve("claude-opus-4-5-20251101")).id == "claude-opus-4-5"
    for unknown in ("claude-opus-99", "vendor/claude-opus-5", "../sessions", "ö"):
        await refused(api.sdk.models.retrieve(unknown), kind=NotFoundError)


async def test_pages_go_forward_and_backward_by_ids(api: Api) -> None:
    first = await api.sdk.models.list(limit=3)
    whole = await ids(api.sdk.models.list(limit=1000))
    assert [model.id for model in first.data] == whole[:3]
    assert (first.first_id, first.last_id, first.has_more) == (whole[0], whole[2], True)
    assert await ids(api.sdk.models.list(limit=3)) == whole
    back = await api.sdk.models.list(before_id=whole[5], limit=2)
    assert ([model.id for model in back.data], back.has_more) == (whole[3:5], True)
    rest = await api.sdk.models.list(before_id=whole[2])
    assert ([model.id for model in rest.data], rest.has_more) == (whole[:2], False)
    last = await api.sdk.models.list(after_id=whole[-1])
    assert (last.data, last.first_id, last.last_id, last.has_more) == ([], None, None, False)


async def test_retired_models_are_listed_only_where_they_are_asked_for(api: Api) -> None:
    retired = api.sdk.models.list(lifecycle=["retired"])
    assert await ids(retired) == []
    active = await ids(api.sdk.models.list(lifecycle=["active", "deprecated"]))
    assert active == await ids(api.sdk.models.list())


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("lifecycle[]=gone", "lifecycle"),
        ("after_id=claude-opus-99", "after_id"),
        ("before_id=claude-opus-99", "before_id"),
    ],
)
async def test_a_wrong_question_is_refused_with_its_parameter(api: Api, query: str, named: str) -> None:
    response = await api.get(f"/v1/models?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(named)


async def test_the_list_needs_an_api_key_and_no_beta_header(api: Api, strict_api: Api) -> None:
    response = await api.http.get("/v1/models", headers={"x-api-key": "none"})
    assert response.status_code == 401
    assert (await strict_api.get("/v1/models")).status_code == 200
    environment = await api.environment()
    key = await api.environment_key(environment["id"])
    response = await api.http.get("/v1/models", headers={"x-api-key": key})
    assert response.status_code == 403
