"""Sandbox providers by the name that an operator gives."""

from __future__ import annotations

from typing import Literal, get_args

from corral.hands.sandbox.bubblewrap import BubblewrapProvider
from corral.hands.sandbox.process import ProcessProvider
from corral.hands.sandbox.provider import Limits, SandboxProvider, SandboxUnavailable

ProviderName = Literal["bubblewrap", "process"]

#: Every name that `provider_named` knows; the first is the default.
PROVIDER_NAMES: tuple[ProviderName, ...] = get_args(ProviderName)


def provider_named(name: str, *, waiting: int = 0, limits: Limits | None = None) -> SandboxProvider:
    """Return a new provider.

    waiting: sandboxes to begin ahead of time, with `limits`, where the provider can do that. Raises
    `SandboxUnavailable` for a name that is not in `PROVIDER_NAMES`.
    """
    match name:
        case "bubblewrap":
            return BubblewrapProvider(waiting=waiting, limits=limits)
        case "process":
            return ProcessProvider()
        case _:
            names = ", ".join(PROVIDER_NAMES)
            raise SandboxUnavailable(f"unknown sandbox provider {name!r}: choose one of {names}")
