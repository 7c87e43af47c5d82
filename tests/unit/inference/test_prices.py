"""List prices: the packaged table, what overrides it, and exact costs."""

from datetime import date
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from corral.inference.prices import PricesError, nanodollars, packaged_prices, price_table
from corral.settings import SettingsError, load_settings
from corral.testing.validation.models import MODEL_IDS

COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "ephemeral_5m_input_tokens",
    "ephemeral_1h_input_tokens",
)
tokens = st.fixed_dictionaries({name: st.integers(0, 10_000_000) for name in COUNTS})
models = st.sampled_from(sorted(packaged_prices().models))


def used(**counts: int) -> dict[str, int]:
    return {**dict.fromkeys(COUNTS, 0), **counts}


@pytest.mark.parametrize("model", MODEL_IDS)
def test_every_current_model_has_a_price_and_a_name(model: str) -> None:
    price = packaged_prices().find(model)
    assert price is not None
    assert price.name is not None
    assert price.line is not None
    rates = price.rates
    # By the published rules: a write costs 1.25 and 2 times the input, a read a tenth or less.
    assert rates.cache_write_5m == rates.input * 5 // 4
    assert rates.cache_write_1h == rates.input * 2
    assert 0 < rates.cache_read * 10 <= rates.input
    assert rates.output == rates.input * 5


def test_a_dated_id_has_the_price_of_its_model_and_no_other_suffix_has() -> None:
    table = packaged_prices()
    assert table.find("claude-sonnet-4-5-20250929") is table.find("claude-sonnet-4-5")
    assert table.find("claude-sonnet-4-5@20250929") is table.find("claude-sonnet-4-5")
    for unknown in ("claude-sonnet-4-5-fast", "claude-sonnet-4-5-2025", "claude-sonnet", "", "gpt"):
        assert table.find(unknown) is None


def test_each_kind_of_token_has_its_own_price() -> None:
    cost = packaged_prices().cost
    million = 1_000_000
    assert cost("claude-opus-4-5", used(input_tokens=million)) == 5 * 10**9
    assert cost("claude-opus-4-5", used(output_tokens=million)) == 25 * 10**9
    assert cost("claude-opus-4-5", used(ephemeral_5m_input_tokens=million)) == 6.25 * 10**9
    assert cost("claude-opus-4-5", used(ephemeral_1h_input_tokens=million)) == 10 * 10**9
    assert cost("claude-opus-4-5", used(cache_read_input_tokens=million)) == 0.5 * 10**9
    assert cost("claude-opus-4-5", used(input_tokens=1)) == 5_000


@given(model=models, one=tokens, other=tokens)
def test_costs_are_never_negative_grow_with_tokens_and_add_up(
    model: str, one: dict[str, int], other: dict[str, int]
) -> None:
    table = packaged_prices()
    price = table.find(model)
    assert price is not None
    both = {name: one[name] + other[name] for name in COUNTS}
    first, second, sum_ = (price.rates.cost(counts) for counts in (one, other, both))
    assert first >= 0
    assert first + second == sum_
    whole = table.cost(model, both)
    assert whole is not None
    assert whole >= (table.cost(model, one) or 0)


def test_a_long_prompt_has_another_price_for_the_whole_request_cached_tokens_included() -> None:
    cost = packaged_prices().cost
    at_most = used(input_tokens=40_000, cache_read_input_tokens=60_000, output_tokens=1_000)
    longer = used(input_tokens=40_000, cache_read_input_tokens=60_001, output_tokens=1_000)
    assert cost("claude-haiku-5-5", at_most) == 40_000 * 100 + 60_000 * 10 + 1_000 * 500
    assert cost("claude-haiku-5-5", longer) == 40_000 * 500 + 60_001 * 50 + 1_000 * 2_500


def test_the_served_model_decides_and_a_gateways_own_name_does_not() -> None:
    cost = packaged_prices().cost
    counts = used(input_tokens=1_000_000)
    assert cost("claude-fable-5", counts, served="claude-opus-4-8") == 5 * 10**9
    assert cost("claude-opus-4-8", counts, served="prod/opus") == 5 * 10**9
    assert cost("prod/opus", counts, served="claude-opus-4-8-20260101") == 5 * 10**9
    assert cost("prod/opus", counts, served="prod/opus") is None


def test_fast_answers_and_answers_from_the_united_states_cost_more() -> None:
    cost = packaged_prices().cost
    counts = used(input_tokens=1_000_000)
    assert cost("claude-opus-5-5", counts, speed="standard", geography="global") == 4 * 10**9
    assert cost("claude-opus-5-5", counts, geography="us") == 4.4 * 10**9
    assert cost("claude-opus-5-5", counts, speed="fast") == 8 * 10**9
    assert cost("claude-opus-5-5", counts, speed="fast", geography="us") == 8.8 * 10**9
    # A speed that has no published price has none here.
    assert cost("claude-haiku-4-5", counts, speed="fast") is None


def test_web_searches_are_added() -> None:
    assert packaged_prices().cost("claude-opus-4-5", used(), web_searches=1_000) == 10 * 10**9
    free = price_table({}, thousand_web_searches=0)
    assert free.cost("claude-opus-4-5", used(), web_searches=1_000) == 0


def test_own_models_are_added_and_known_ones_overridden_with_the_usual_cache_prices() -> None:
    table = price_table(
        {"my/llama": {"input": 0.2, "output": 0.6}, "claude-opus-5": {"input": "1.5", "output": 2}},
        session_hour=0,
    )
    llama = table.find("my/llama")
    assert llama is not None
    assert (llama.rates.input, llama.rates.output) == (200, 600)
    assert (llama.rates.cache_write_5m, llama.rates.cache_write_1h, llama.rates.cache_read) == (250, 400, 20)
    assert table.cost("claude-opus-5", used(input_tokens=1)) == 1_500
    assert table.find("claude-opus-4-8") == packaged_prices().find("claude-opus-4-8")
    assert table.session_hour == 0


def test_a_file_of_prices_stands_between_the_packaged_ones_and_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(
        "one: {input: 1, output: 2, released: 2026-01-02, name: One}\n"
        "two: {input: 3, output: 4, cache_read: 0}\n"
    )
    table = price_table({"two": {"input": 5, "output": 6}}, str(file))
    one, two = table.find("one"), table.find("two")
    assert one is not None
    assert two is not None
    assert (one.name, one.released) == ("One", date(2026, 1, 2))
    assert two.rates.input == 5_000
    assert table.find("claude-opus-5") is not None
    file.write_text("")
    assert price_table({}, str(file)).models == packaged_prices().models


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"output": 1}, "m.input: is required"),
        ({"input": 1}, "m.output: is required"),
        ({"input": -1, "output": 1}, "m.input: must be a number from 0"),
        ({"input": "nan", "output": 1}, "m.input: must be a number"),
        ({"input": True, "output": 1}, "m.input: must be a number"),
        ({"input": "a lot", "output": 1}, "m.input: must be a number"),
        ({"input": 1, "output": 1, "inptu": 1}, "m.inptu: no such field"),
        ({"input": 1, "output": 1, "context": 0}, "m.context: no such field"),
        ({"input": 1, "output": 1, "released": "soon"}, "m.released: must be a date"),
        ({"input": 1, "output": 1, "long_prompt": {"input": 1}}, "m.long_prompt.output: is required"),
        (5, "m: must be a mapping"),
    ],
)
def test_an_entry_that_is_none_is_refused_with_its_place(entry: Any, said: str) -> None:
    with pytest.raises(PricesError, match=said.replace(".", r"\.")):
        price_table({"m": entry})


def test_a_price_below_what_can_be_counted_is_never_rounded_down_to_free() -> None:
    table = price_table({"m": {"input": 0.0001, "output": 0}})
    assert table.cost("m", used(input_tokens=1, output_tokens=1)) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [("- a\n", "must be a mapping"), ("a: {", "not valid YAML"), ("a: {input: 1}", "a.output: is required")],
)
def test_a_file_that_is_no_price_list_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(content)
    with pytest.raises(PricesError, match=said) as caught:
        price_table({}, str(file))
    assert str(file) in str(caught.value)


def test_wrong_prices_stop_a_server_before_it_starts(tmp_path: Path) -> None:
    file = tmp_path / "corral.yaml"
    file.write_text("inference:\n  prices: {m: {input: 1}}\n  prices_file: /nowhere\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {})
    assert {problem.place for problem in caught.value.problems} == {
        "inference.prices",
        "inference.prices_file",
    }


def test_prices_may_come_from_the_environment() -> None:
    given = {
        "CORRAL_INFERENCE__PRICES": "{m: {input: 1, output: 2}}",
        "CORRAL_INFERENCE__SESSION_HOUR_PRICE": "0",
    }
    inference = load_settings(None, given).inference
    assert inference.prices == {"m": {"input": 1, "output": 2}}
    assert nanodollars(inference.session_hour_price) == 0
    assert nanodollars(0.08) == 80_000_000
