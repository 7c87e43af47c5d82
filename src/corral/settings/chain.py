"""Settings of the chain over sessions' logs."""

from typing import Annotated

from msgspec import Meta

from corral.settings.section import Seconds, Section
from corral.wire.secret import Secret


class Chain(Section, frozen=True, kw_only=True):
    """The chain over sessions' logs, by which a later change shows (`corral session verify`)."""

    signing_key: Annotated[
        Secret | None,
        Meta(
            description="What seals are signed with (`corral admin chain-key create`). Without it seals hold "
            "against accidents only: whoever can write to the database can make others.",
            extra_json_schema={"from_environment": True},
        ),
    ] = None
    public_keys: Annotated[
        tuple[str, ...],
        Meta(description="Public keys of earlier signing keys, whose seals still count."),
    ] = ()
    seal_seconds: Annotated[
        Seconds,
        Meta(description="How often what was written is sealed. A change before that shows in no seal."),
    ] = 30.0
