"""List prices of models, for the cost that a session reports (contract section 25).

Figures are US dollars per million tokens as published for these models; a model that is not listed costs
nothing here, and says so by ``list_cost`` staying at its running time.
"""

from collections.abc import Mapping
from typing import Final

import msgspec


class Price(msgspec.Struct, frozen=True):
    """US dollars per million tokens. Cache reads cost a tenth of input; writes 1.25 and 2 times as much."""

    input: float
    output: float


PRICES: Final[Mapping[str, Price]] = {
    "claude-opus-4-5": Price(5.0, 25.0),
    "claude-opus-4-6": Price(5.0, 25.0),
    "claude-sonnet-4-5": Price(3.0, 15.0),
    "claude-sonnet-4-6": Price(3.0, 15.0),
    "claude-haiku-4-5": Price(1.0, 5.0),
}


def price_of(model: str) -> Price | None:
    """The list price of a model by its Claude API id, dated or not; None if it is not listed."""
    for family, price in PRICES.items():
        if model == family or model.startswith(f"{family}-2"):
            return price
    return None


def cost_nanodollars(model: str, usage: Mapping[str, int]) -> int:
    """The list cost of one model request, in billionths of a US dollar."""
    price = price_of(model)
    if price is None:
        return 0
    dollars_a_million = (
        usage["input_tokens"] * price.input
        + usage["output_tokens"] * price.output
        + usage["cache_read_input_tokens"] * price.input * 0.1
        + usage["ephemeral_5m_input_tokens"] * price.input * 1.25
        + usage["ephemeral_1h_input_tokens"] * price.input * 2.0
    )
    return round(dollars_a_million * 1_000)
