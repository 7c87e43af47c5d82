"""Vaults on the wire (contract section 15.1); their credentials: `corral.wire.credentials`."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from corral.wire.fields import Metadata, MetadataPatch, Request

DisplayName = Annotated[str, Meta(min_length=1, max_length=255)]

CREDENTIALS: Final = 20
"""Most active credentials of one vault."""
SESSION_VAULTS: Final = 50
"""Most vaults of one session."""


class CreateVault(Request):
    """The body of ``POST /v1/vaults``."""

    display_name: DisplayName
    metadata: Metadata | None = None


class UpdateVault(Request):
    """The body of ``POST /v1/vaults/{id}``: an absent or null field stays."""

    display_name: DisplayName | None = None
    metadata: MetadataPatch | None = None


class Vault(msgspec.Struct, tag="vault", kw_only=True):
    """The vault as the API shows it."""

    id: str
    display_name: str
    metadata: dict[str, str]
    created_at: str
    updated_at: str
    archived_at: str | None
