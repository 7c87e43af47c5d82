"""The list of models: the provider's where there is one, and what stands in for it."""

import asyncio
from typing import Any

from corral.inference.messages import MessagesProvider
from corral.inference.model_list import ModelList
from corral.inference.prices import packaged_prices, price_table
from corral.inference.provider import ModelFailed
from corral.testing import ScriptedModel
from corral.testing.validation.models import MODEL_IDS


class Source:
    """A provider that gives what it is told to, and counts how often it was asked."""

    def __init__(self, *answers: list[dict[str, Any]] | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def list_models(self) -> list[dict[str, Any]]:
        self.asked += 1
        answer = self.answers[min(self.asked, len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Silent:
    """A provider that never answers."""

    async def list_models(self) -> list[dict[str, Any]]:
        await asyncio.Event().wait()
        return []


async def test_what_the_provider_says_of_a_model_is_shown() -> None:
    entry: dict[str, Any] = {
        "id": "claude-opus-5",
        "type": "model",
        "display_name": "Opus, the fifth",
        "created_at": "2026-07-24T00:00:00Z",
        "lifecycle": "deprecated",
        "deprecated_at": "2026-11-01T00:00:00Z",
        "max_tokens": 10,
        "capabilities": {"batch": {"supported": True}},
        "line": "opus",
    }
    [model] = await ModelList(Source([entry])).all()
    assert (model.display_name, model.lifecycle, model.max_tokens) == ("Opus, the fifth", "deprecated", 10)
    assert model.deprecated_at == "2026-11-01T00:00:00Z"
    assert model.capabilities == {"batch": {"supported": True}}
    # What it leaves out is taken from the price list.
    assert model.max_input_tokens == 1_000_000


async def test_the_short_entries_of_other_gateways_are_completed() -> None:
    entries = [{"id": "llama", "object": "model", "created": 5}, {"id": "claude-haiku-4-5"}]
    llama, haiku = await ModelList(Source(entries)).all()
    assert (llama.display_name, llama.created_at, llama.line) == ("llama", "1970-01-01T00:00:00Z", None)
    assert (haiku.display_name, haiku.line, haiku.max_tokens) == ("Claude Haiku 4.5", "haiku", 64_000)


async def test_ids_that_the_settings_translate_can_be_named_too() -> None:
    models = await ModelList(Source([{"id": "prod/opus"}]), aliases=["claude-opus-5", "prod/opus"]).all()
    assert [model.id for model in models] == ["prod/opus", "claude-opus-5"]


async def test_the_price_list_stands_in_for_a_provider_without_a_list() -> None:
    failed = ModelFailed("failed", "404", retryable=False)
    prices = price_table({"my/llama": {"input": 0, "output": 0}})
    for source in (None, Source(failed), Silent()):
        models = await ModelList(source, prices=prices, aliases=["mine"], timeout=0.01).all()
        ids = [model.id for model in models]
        assert ids == [*packaged_prices().models, "my/llama", "mine"]
        assert ids[0] == "claude-fable-5-2"
        assert models[0].created_at.startswith("2026-11-09T00:00:00")


async def test_the_provider_is_asked_once_for_many_at_the_same_time_and_soon_after() -> None:
    source = Source([{"id": "one"}])
    models = ModelList(source)
    await asyncio.gather(*(models.all() for _ in range(20)))
    await models.all()
    assert source.asked == 1


async def test_a_model_is_found_by_its_dated_id_too() -> None:
    models = ModelList(Source([{"id": "claude-opus-4-5-20251101"}, {"id": "other"}]))
    for named in ("claude-opus-4-5-20251101", "claude-opus-4-5"):
        found = await models.find(named)
        assert found is not None
        assert found.id == "claude-opus-4-5-20251101"
    assert await models.find("claude-opus-5") is None
    assert await models.find("unheard-of") is None


async def test_a_real_endpoint_is_asked_over_http() -> None:
    async with ScriptedModel() as scripted:
        provider = MessagesProvider(
            base_url=scripted.base_url, api_key="k", models={}, max_tokens=10, timeout=5
        )
        listed = await provider.list_models()
        assert [entry["id"] for entry in listed] == list(MODEL_IDS)
        assert [model.id for model in await ModelList(provider).all()] == list(MODEL_IDS)
        await provider.close()
    gone = MessagesProvider(base_url=scripted.base_url, api_key="k", models={}, max_tokens=10, timeout=5)
    assert [model.id for model in await ModelList(gone).all()] == list(packaged_prices().models)
    await gone.close()
