"""Settings of model requests and of what they cost."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from corral.settings.section import Count, Price, Seconds, Section
from corral.wire.secret import Secret


class Inference(Section, frozen=True, kw_only=True):
    """Where model calls go."""

    provider: Annotated[
        Literal["anthropic", "gateway"],
        Meta(
            description="`anthropic` is the Claude API; `gateway` is any server that speaks the Messages API "
            "(LiteLLM, vLLM, Ollama, llama.cpp, your own) at `base_url`."
        ),
    ] = "anthropic"
    base_url: Annotated[
        str | None,
        Meta(description="Address of the Messages API, without `/v1/messages`. A gateway needs it."),
    ] = None
    api_key: Annotated[
        Secret | None,
        Meta(
            description="The credential for model calls. Under `anthropic`, `ANTHROPIC_API_KEY` is read if "
            "this is not set.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    models: Annotated[
        dict[str, str],
        Meta(
            description="Translates the model ids that agents name into the provider's, where they differ.",
            examples=[{"claude-sonnet-4-5": "my-gateway/sonnet"}],
        ),
    ] = field(default_factory=dict[str, str])
    prices: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="List prices by model id, in US dollars per million tokens, over those that Corral "
            "comes with (see docs/budgets.md). A price of 0 makes a model free of charge; a model without a "
            "price cannot be used in a session that has a budget.",
            examples=[{"my-gateway/llama": {"input": 0.2, "output": 0.6}}],
        ),
    ] = field(default_factory=dict[str, dict[str, Any]])
    prices_file: Annotated[
        str | None,
        Meta(description="A YAML file with such prices; those of `prices` come before its own."),
    ] = None
    capabilities: Annotated[
        dict[str, dict[str, Any]],
        Meta(
            description="What models can do, by model id, over what Corral knows (see docs/context.md): "
            "`context` and `max_output` in tokens, `images`, `documents`, `prompt_cache` and others. A model "
            "that Corral does not know is taken to have a context of 128,000 tokens.",
            examples=[{"my-gateway/llama": {"context": 32768, "images": False}}],
        ),
    ] = field(default_factory=dict[str, dict[str, Any]])
    context_editing: Annotated[
        bool,
        Meta(
            description="Has the provider leave old tool results out of long requests, where it offers that."
        ),
    ] = False
    session_hour_price: Annotated[
        Price,
        Meta(description="List price in US dollars of an hour in which a session is running; 0 for none."),
    ] = 0.08
    web_searches_price: Annotated[
        Price, Meta(description="List price in US dollars of 1,000 web searches; 0 for none.")
    ] = 10.0
    models_timeout_seconds: Annotated[
        Seconds,
        Meta(
            description="How long `GET /v1/models` waits for the provider's list before it answers from the "
            "price list instead."
        ),
    ] = 5.0
    max_tokens: Annotated[Count, Meta(description="Most tokens that one model request may produce.")] = 32_000
    request_timeout_seconds: Annotated[
        Seconds, Meta(description="Longest silence of the provider within one model request.")
    ] = 600.0
    max_retries: Annotated[
        int,
        Meta(
            ge=0,
            description="How often a model request is repeated after an error that may pass (429, 5xx, 529, "
            "a lost connection) before the turn ends with an error.",
        ),
    ] = 8
    retry_backoff_seconds: Annotated[
        Seconds,
        Meta(
            description="Wait before the first repetition; doubled each time. A provider's retry-after wins."
        ),
    ] = 1.0
    retry_backoff_max_seconds: Annotated[Seconds, Meta(description="Longest wait between repetitions.")] = (
        60.0
    )

    @property
    def is_configured(self) -> bool:
        """Whether a model can be called at all: a credential, or a gateway that may need none."""
        return self.api_key is not None or self.base_url is not None

    def conflicts(self) -> Iterator[tuple[str, str]]:
        """A gateway without an address, and an address that is none."""
        if self.provider == "gateway" and self.base_url is None:
            yield "base_url", "a gateway needs its address, such as http://127.0.0.1:4000"
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            yield "base_url", f"must begin with http:// or https://, got {self.base_url!r}"
        if self.retry_backoff_max_seconds < self.retry_backoff_seconds:
            yield "retry_backoff_max_seconds", "must not be less than retry_backoff_seconds"
        if self.capabilities:
            from corral.wire.model_table import CapabilitiesError, CapabilityTable

            try:
                CapabilityTable(self.capabilities)
            except CapabilitiesError as error:
                yield "capabilities", str(error)
        if self.prices or self.prices_file is not None:
            from corral.inference.prices import PricesError, price_table

            for key, overrides, path in (
                ("prices", self.prices, None),
                ("prices_file", {}, self.prices_file),
            ):
                try:
                    price_table(overrides, path)
                except PricesError as error:
                    yield key, str(error)
