"""What models can do: one table, which everything that depends on it reads. Pure.

A line says what differs from `ModelCapabilities`' own defaults; those are what a model gets that stands
nowhere. Settings override single fields (`inference.capabilities`). What depends on who serves a model,
whichever it is, stands in `PROVIDERS`; something is offered where both say so.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one model can do. The defaults are what is assumed of an unknown one."""

    context: int = 128_000
    """Tokens of a request and its answer together."""
    max_output: int | None = None
    """Most tokens of one answer; None where it is not known, and only `inference.max_tokens` bounds it."""
    thinking: Literal["none", "budget", "adaptive"] = "none"
    """How the model thinks: not in blocks of its own, for so many tokens, or as it sees fit."""
    images: bool = True
    documents: bool = True
    """Whether PDF documents may be shown; text documents always may."""
    max_images: int = 100
    """Most images in one request."""
    tool_choice: bool = True
    """Whether a certain tool can be demanded."""
    prompt_cache: bool = True
    """Whether `cache_control` marks may stand in a request."""
    system_messages: bool = False
    """Whether a system message may stand between others."""
    effort: bool = True
    """Whether the effort can be set."""
    context_editing: bool = False
    """Whether the provider can leave old tool results out of a request (`context_management`)."""


class ProviderCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider understands, whatever the model."""

    effort: bool = False
    context_editing: bool = False
    session_header: bool = False
    """Whether the provider is told which session a request is of."""
    plain_key_header: bool = True
    """Whether the credential goes out as `x-api-key` too, beside what the client sends."""


_CURRENT: Final = ModelCapabilities(
    context=1_000_000, max_output=128_000, thinking="adaptive", system_messages=True, context_editing=True
)
_WITHOUT_SYSTEM: Final = msgspec.structs.replace(_CURRENT, system_messages=False)
_BEFORE: Final = ModelCapabilities(
    context=200_000, max_output=64_000, thinking="budget", context_editing=True
)

MODELS: Final[Mapping[str, ModelCapabilities]] = {
    "claude-fable-5": _CURRENT,
    "claude-mythos-5": _CURRENT,
    "claude-opus-5": _CURRENT,
    "claude-opus-4-8": _CURRENT,
    "claude-sonnet-5-5": _CURRENT,
    "claude-haiku-5-5": _CURRENT,
    "claude-sonnet-5": _WITHOUT_SYSTEM,
    "claude-opus-4-7": _WITHOUT_SYSTEM,
    "claude-opus-4-6": _WITHOUT_SYSTEM,
    "claude-sonnet-4-6": msgspec.structs.replace(_WITHOUT_SYSTEM, max_output=None),
    "claude-opus-4-5": _BEFORE,
    "claude-sonnet-4-5": msgspec.structs.replace(_BEFORE, effort=False),
    "claude-haiku-4-5": msgspec.structs.replace(_BEFORE, effort=False),
}
"""By model or family: an id is looked up whole, then without its last parts, `claude-fable-5-2` under
`claude-fable-5`.
"""

PROVIDERS: Final[Mapping[str, ProviderCapabilities]] = {
    "anthropic": ProviderCapabilities(
        effort=True, context_editing=True, session_header=True, plain_key_header=False
    ),
    "gateway": ProviderCapabilities(),
}
"""By `inference.provider`."""

_DATED: Final = re.compile(r"[-@]\d{8}$")
_UNKNOWN: Final = ModelCapabilities()


class CapabilityTable:
    """The table that a server goes by: the packaged one, with the operator's lines over it. Immutable."""

    def __init__(self, overrides: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """`overrides` are fields of `ModelCapabilities` by model id.

        Raises:
            CapabilitiesError: one of them is none.
        """
        self._own = {model: _overridden(model, given) for model, given in (overrides or {}).items()}

    def of(self, model_id: str) -> ModelCapabilities:
        """What a model can do, dated or not; the defaults if nothing is known of it."""
        return self.known(model_id) or _UNKNOWN

    def known(self, model_id: str) -> ModelCapabilities | None:
        """What a model can do; None if it stands nowhere."""
        return self._own.get(model_id) or self._own.get(_DATED.sub("", model_id)) or _packaged(model_id)


class CapabilitiesError(ValueError):
    """A line of the table cannot be used; the message names it, and says what is wrong with it."""


def _packaged(model_id: str) -> ModelCapabilities | None:
    parts = _DATED.sub("", model_id).split("-")
    for end in range(len(parts), 2, -1):
        if (found := MODELS.get("-".join(parts[:end]))) is not None:
            return found
    return None


def _overridden(model: str, given: Mapping[str, Any]) -> ModelCapabilities:
    base = msgspec.structs.asdict(_packaged(model) or _UNKNOWN)
    try:
        made = msgspec.convert({**base, **given}, ModelCapabilities)
    except msgspec.ValidationError as error:
        raise CapabilitiesError(f"{model}: {error}") from error
    if made.context < 1 or made.max_images < 0 or (made.max_output is not None and made.max_output < 1):
        raise CapabilitiesError(f"{model}: context and max_output are whole numbers of tokens above 0")
    return made


PACKAGED: Final = CapabilityTable()
"""The table that Corral comes with."""
