"""The extensions of one server, put together."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from corral.brain.web_tools import WebOffer
from corral.bus.hub import Bus
from corral.extensions.exporting import Exporting
from corral.extensions.forking import Forking, WorkItems
from corral.extensions.importing import Importing
from corral.extensions.origins import Origins
from corral.inference.prices import PriceTable
from corral.resources.blobs import Blobs
from corral.resources.environments import Environments
from corral.resources.repositories import AttachedRepositories
from corral.resources.vaults import Vaults
from corral.session.sealing import Sealing
from corral.session.seals import SigningKey, VerifyKey
from corral.session.verifying import Verifying
from corral.settings import Chain
from corral.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """What the API offers beyond the documented one around whole sessions."""

    verifying: Verifying
    forking: Forking
    exporting: Exporting
    importing: Importing
    origins: Origins


@asynccontextmanager
async def open_extensions(
    settings: Chain,
    database: Database,
    bus: Bus,
    written: set[str],
    *,
    blobs: Blobs,
    environments: Environments,
    repositories: AttachedRepositories,
    vaults: Vaults,
    work: WorkItems,
    prices: PriceTable,
    web: WebOffer,
) -> AsyncGenerator[Extensions]:
    """The extensions, and the seals of what this server writes (`written`: `LogWriter.written`).

    Raises:
        ValueError: a key of the settings is none.
    """
    key = None if settings.signing_key is None else SigningKey.parse(settings.signing_key)
    keys = [*([key.public] if key else []), *map(VerifyKey.parse, settings.public_keys)]
    async with Sealing(database, key, written, seconds=settings.seal_seconds):
        yield Extensions(
            verifying=Verifying(database, keys),
            forking=Forking(database, bus, environments=environments, work=work, prices=prices),
            exporting=Exporting(database, blobs, key, web),
            importing=Importing(
                database,
                bus,
                blobs=blobs,
                environments=environments,
                repositories=repositories,
                vaults=vaults,
                work=work,
                prices=prices,
                keys=keys,
            ),
            origins=Origins(database),
        )
