"""Sandbox providers by the name that an operator gives."""

from __future__ import annotations

from typing import Literal, get_args

from corral.hands.sandbox.bubblewrap import BubblewrapProvider
from corral.hands.sandbox.process import ProcessProvider
from corral.hands.sandbox.provider import SandboxProvider, SandboxUnavailable

ProviderName = Literal["bubblewrap", "process"]

#: Every name that `provider_named` knows; the first is the default.
PROVIDER_NAMES: tuple[ProviderName, ...] = get_args(ProviderName)


def provider_named(name: str) -> SandboxProvider:
    """Return a new provider. Raises `SandboxUnavailable` for a name that is not in `PROVIDER_NAMES`."""
    match name:
        case "bubblewrap":
            return BubblewrapProvider()
        case "process":
            return ProcessProvider()
        case _:
            names = ", ".join(PROVIDER_NAMES)
            raise SandboxUnavailable(f"unknown sandbox provider {name!r}: choose one of {names}")
