"""Which models agents can name, as ``GET /v1/models`` shows them.

The provider is asked where it has a list (the Claude API has, and so have most gateways), within a bounded
time; what it says is kept for a short while. Where it has none, or does not answer, the price list and the
settings' translation of ids stand in: that says which ids this server knows, not which the provider serves.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Protocol, cast, runtime_checkable

import structlog

from corral.inference.prices import ModelPrice, PriceTable, packaged_prices
from corral.inference.provider import ModelFailed
from corral.wire.model_info import LIFECYCLES, LINES, Lifecycle, Line, ModelInfo
from corral.wire.model_table import PACKAGED, CapabilityTable
from corral.wire.times import to_wire

_FRESH_SECONDS: Final = 60.0
_FAILED_SECONDS: Final = 10.0
_UNKNOWN_DATE: Final = "1970-01-01T00:00:00Z"
_LIFECYCLES: Final[Mapping[str, Lifecycle]] = {stage: stage for stage in LIFECYCLES}
_LINES: Final[Mapping[str, Line]] = {line: line for line in LINES}

_log = structlog.get_logger(__name__)


@runtime_checkable
class ModelSource(Protocol):
    """A provider that can say which models it serves."""

    async def list_models(self) -> list[dict[str, Any]]:
        """Its models, in its own words, each at least with an ``id``.

        Raises:
            ModelFailed: it has no list, or cannot be asked.
        """
        ...


class ModelList:
    """The list of models. One server has one; it asks the provider at most once at a time."""

    def __init__(
        self,
        source: ModelSource | None = None,
        *,
        prices: PriceTable | None = None,
        capabilities: CapabilityTable = PACKAGED,
        aliases: Iterable[str] = (),
        timeout: float = 5.0,
    ) -> None:
        """`aliases` are further ids that agents may name; `timeout` bounds the provider, in seconds."""
        self._source = source
        self._prices = prices or packaged_prices()
        self._capabilities = capabilities
        self._aliases = tuple(aliases)
        self._timeout = timeout
        self._models: list[ModelInfo] = []
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def all(self) -> list[ModelInfo]:
        """Every model, as a rule the newest first."""
        async with self._asking:
            if time.monotonic() >= self._until:
                offered = await self._offered()
                self._models = self._known() if offered is None else self._named(offered)
                fresh = _FAILED_SECONDS if offered is None and self._source is not None else _FRESH_SECONDS
                self._until = time.monotonic() + fresh
            return self._models

    async def find(self, model_id: str) -> ModelInfo | None:
        """The model of an id, dated or not; None if it is not listed."""
        models = await self.all()
        for model in models:
            if model.id == model_id:
                return model
        price = self._prices.find(model_id)
        return next((model for model in models if price and self._prices.find(model.id) is price), None)

    async def _offered(self) -> list[dict[str, Any]] | None:
        if self._source is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                return await self._source.list_models()
        except (ModelFailed, TimeoutError) as error:
            reason = str(error) or f"no answer within {self._timeout:g} seconds"
            _log.info("the provider gave no list of models; the price list stands in", reason=reason)
            return None

    def _named(self, offered: list[dict[str, Any]]) -> list[ModelInfo]:
        models = [self._info(entry["id"], entry) for entry in offered]
        listed = {model.id for model in models}
        return [*models, *(self._info(alias, {}) for alias in self._aliases if alias not in listed)]

    def _known(self) -> list[ModelInfo]:
        ids = dict.fromkeys([*self._prices.models, *self._aliases])
        return [self._info(model_id, {}) for model_id in ids]

    def _info(self, model_id: str, entry: Mapping[str, Any]) -> ModelInfo:
        price = self._prices.find(model_id)
        known = self._capabilities.known(model_id)
        line = entry.get("line") or (price.line if price else None)
        capabilities = entry.get("capabilities")
        fallbacks = entry.get("allowed_fallback_models")
        return ModelInfo(
            id=model_id,
            display_name=str(entry.get("display_name") or (price.name if price else None) or model_id),
            created_at=_text(entry, "created_at") or _released(price),
            lifecycle=_LIFECYCLES.get(str(entry.get("lifecycle")), "active"),
            line=_LINES.get(str(line)),
            max_input_tokens=_count(entry, "max_input_tokens") or (known.context if known else None),
            max_tokens=_count(entry, "max_tokens") or (known.max_output if known else None),
            deprecated_at=_text(entry, "deprecated_at"),
            retires_at=_text(entry, "retires_at"),
            capabilities=cast("dict[str, Any]", capabilities) if isinstance(capabilities, dict) else None,
            allowed_fallback_models=[str(one) for one in cast("list[Any]", fallbacks)]
            if isinstance(fallbacks, list)
            else None,
        )


def _released(price: ModelPrice | None) -> str:
    if price is None or price.released is None:
        return _UNKNOWN_DATE
    return to_wire(datetime(price.released.year, price.released.month, price.released.day, tzinfo=UTC))


def _text(entry: Mapping[str, Any], name: str) -> str | None:
    value = entry.get(name)
    return value if isinstance(value, str) and value else None


def _count(entry: Mapping[str, Any], name: str) -> int | None:
    value = entry.get(name)
    return value if isinstance(value, int) and value > 0 else None
