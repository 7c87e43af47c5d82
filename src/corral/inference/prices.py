"""List prices: what the work of a session costs (contract sections 8.6 and 25).

The packaged table holds the Claude models; the operator's settings override it and add to it. All arithmetic
is in whole billionths of a US dollar, so that costs add up exactly. A model that is not in the table has no
list price: `PriceTable.cost` says so with None, and nothing guesses.
"""

import math
import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import yaml

NANODOLLARS: Final = 1_000_000_000
"""Of a US dollar."""
_PER_TOKEN: Final = NANODOLLARS // 1_000_000
"""Nanodollars a token, for each dollar per million tokens."""
_DATED: Final = re.compile(r"[-@]\d{8}$")
_DEFAULT_RATIOS: Final = {
    "cache_write_5m": Decimal("1.25"),
    "cache_write_1h": Decimal(2),
    "cache_read": Decimal("0.1"),
}
_RATES: Final = ("input", "output", *_DEFAULT_RATIOS)
_LARGEST_PRICE: Final = 1_000_000
_FACTS: Final = ("name", "line", "released", "fast", "us", "long_prompt")


class PricesError(ValueError):
    """A price table cannot be used; the message names the entry, and says what is wrong with it."""


class Rates(msgspec.Struct, frozen=True):
    """Nanodollars a token."""

    input: int
    output: int
    cache_write_5m: int
    cache_write_1h: int
    cache_read: int

    def cost(self, usage: Mapping[str, int]) -> int:
        """What these tokens cost, in nanodollars."""
        return (
            usage["input_tokens"] * self.input
            + usage["output_tokens"] * self.output
            + usage["cache_read_input_tokens"] * self.cache_read
            + usage["ephemeral_5m_input_tokens"] * self.cache_write_5m
            + usage["ephemeral_1h_input_tokens"] * self.cache_write_1h
        )


class ModelPrice(msgspec.Struct, frozen=True, kw_only=True):
    """One model's entry: its prices, and what a list of models shows of it."""

    rates: Rates
    long_prompt: Rates | None = None
    long_prompt_above: int = 0
    fast: Fraction | None = None
    us: Fraction = Fraction(1)
    name: str | None = None
    line: str | None = None
    released: date | None = None

    def cost(self, usage: Mapping[str, int], *, speed: str | None, geography: str | None) -> int | None:
        """The cost of one request in nanodollars, rounded to the nearest; None if `speed` has no price."""
        prompt = sum(count for name, count in usage.items() if name.endswith("input_tokens"))
        rates = self.long_prompt if self.long_prompt and prompt > self.long_prompt_above else self.rates
        factor = self.us if geography == "us" else Fraction(1)
        if speed == "fast":
            if self.fast is None:
                return None
            factor *= self.fast
        return round(rates.cost(usage) * factor)


class PriceTable:
    """The list prices that a server goes by. Immutable.

    ``session_hour`` is what an hour of running costs and ``web_search`` what one search does, in nanodollars.
    """

    def __init__(
        self,
        models: Mapping[str, ModelPrice],
        *,
        session_hour: int = 80_000_000,
        web_search: int = 10_000_000,
    ) -> None:
        self.models: Mapping[str, ModelPrice] = dict(models)
        self.session_hour = session_hour
        self.web_search = web_search

    def find(self, model: str) -> ModelPrice | None:
        """The entry of a model by its id, dated or not; None if it has no list price."""
        return self.models.get(model) or self.models.get(_DATED.sub("", model))

    def cost(
        self,
        model: str,
        usage: Mapping[str, int],
        *,
        served: str | None = None,
        speed: str | None = None,
        geography: str | None = None,
        web_searches: int = 0,
    ) -> int | None:
        """The list cost of one model request in nanodollars; None if it has no list price.

        The price is that of the model which `served` the request, where it is listed (a gateway may call it
        by a name of its own), and otherwise that of the `model` which was asked for. `usage` counts the
        tokens by their names in a session's usage.
        """
        price = (self.find(served) if served else None) or self.find(model)
        cost = None if price is None else price.cost(usage, speed=speed, geography=geography)
        return None if cost is None else cost + web_searches * self.web_search


@cache
def packaged_prices() -> PriceTable:
    """The table that Corral comes with, at the documented prices of running time and web searches."""
    return PriceTable(_packaged_models())


def price_table(
    overrides: Mapping[str, Any],
    file: str | None = None,
    *,
    session_hour: float = 0.08,
    thousand_web_searches: float = 10.0,
) -> PriceTable:
    """The packaged table with the entries of `file` over it, and `overrides` over both.

    An entry replaces the whole one of the same model. Prices are US dollars: per million tokens, per hour of
    running, per thousand searches. Reads the file; call it where blocking is allowed.

    Raises:
        PricesError: the file cannot be read, or an entry is not one.
    """
    models = dict(_packaged_models())
    if file is not None:
        models |= _read(Path(file))
    models |= _entries(overrides)
    return PriceTable(
        models,
        session_hour=nanodollars(session_hour),
        web_search=nanodollars(Decimal(str(thousand_web_searches)) / 1000),
    )


def nanodollars(dollars: float | Decimal) -> int:
    """An amount of US dollars in nanodollars, rounded to the nearest."""
    return round(Decimal(str(dollars)) * NANODOLLARS)


@cache
def _packaged_models() -> Mapping[str, ModelPrice]:
    text = files("corral.inference").joinpath("prices.yaml").read_text("utf-8")
    return _entries(yaml.safe_load(text))


def _read(path: Path) -> Mapping[str, ModelPrice]:
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PricesError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise PricesError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        return _entries({} if content is None else content)
    except PricesError as error:
        raise PricesError(f"{path}: {error}") from error


def _entries(content: Any) -> dict[str, ModelPrice]:
    if not isinstance(content, Mapping):
        raise PricesError("must be a mapping of model ids to prices")
    return {
        str(model): _entry(str(model), entry) for model, entry in cast("Mapping[Any, Any]", content).items()
    }


def _entry(model: str, given: Any) -> ModelPrice:
    fields = _fields(model, given, {*_RATES, *_FACTS})
    long_prompt: Rates | None = None
    above = 0
    if fields.get("long_prompt") is not None:
        inner = _fields(f"{model}.long_prompt", fields["long_prompt"], {*_RATES, "above"})
        above = _count(f"{model}.long_prompt.above", inner.get("above")) or 0
        long_prompt = _rates(f"{model}.long_prompt", inner)
    fast = fields.get("fast")
    released = fields.get("released")
    if released is not None and not isinstance(released, date):
        raise PricesError(f"{model}.released: must be a date such as 2026-11-09, got {released!r}")
    return ModelPrice(
        rates=_rates(model, fields),
        long_prompt=long_prompt,
        long_prompt_above=above,
        fast=None if fast is None else Fraction(_number(f"{model}.fast", fast)),
        us=Fraction(_number(f"{model}.us", fields.get("us", 1))),
        name=None if fields.get("name") is None else str(fields["name"]),
        line=None if fields.get("line") is None else str(fields["line"]),
        released=released,
    )


def _fields(place: str, given: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise PricesError(f"{place}: must be a mapping with `input` and `output`, got {given!r}")
    fields = {str(key): value for key, value in cast("Mapping[Any, Any]", given).items()}
    if unknown := sorted(fields.keys() - known):
        raise PricesError(f"{place}.{unknown[0]}: no such field; there are {', '.join(sorted(known))}")
    return fields


def _rates(place: str, fields: Mapping[str, Any]) -> Rates:
    dollars: dict[str, Decimal] = {}
    for name in _RATES:
        if fields.get(name) is not None:
            dollars[name] = _number(f"{place}.{name}", fields[name])
        elif name in _DEFAULT_RATIOS:
            dollars[name] = dollars["input"] * _DEFAULT_RATIOS[name]
        else:
            raise PricesError(f"{place}.{name}: is required, in US dollars per million tokens")
    # A price below a nanodollar a token is rounded up to one: never down to free.
    return Rates(**{name: math.ceil(amount * _PER_TOKEN) for name, amount in dollars.items()})


def _number(place: str, value: Any) -> Decimal:
    try:
        number = Decimal(str(value)) if not isinstance(value, bool) else None
    except InvalidOperation:
        number = None
    if number is None or not number.is_finite() or not 0 <= number <= _LARGEST_PRICE:
        raise PricesError(f"{place}: must be a number from 0 to {_LARGEST_PRICE}, got {value!r}")
    return number


def _count(place: str, value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PricesError(f"{place}: must be a whole number of tokens, got {value!r}")
    return value
