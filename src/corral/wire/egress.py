"""What workers and the gateway agree on about the way out of sandboxes, and what a sandbox is made of."""

from ipaddress import ip_address
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from corral.wire.fields import Request

GREETING: Final = b"CORRAL-EGRESS/1 "
"""What a worker says first on each connection, followed by the token of its work item and a line feed."""
LINK_NAME: Final = "gateway.corral.internal"
"""The name by which workers know the gateway's own side of a connection."""


class Way(msgspec.Struct, frozen=True):
    """The way out. address: of the gateway, ``host:port``. certificate: of its authority, in PEM."""

    address: str
    certificate: str

    @property
    def host(self) -> str:
        """The gateway's host."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The gateway's port."""
        return int(self.address.rpartition(":")[2])

    @property
    def is_local(self) -> bool:
        """Whether the gateway is on this machine, so that nothing between can be read."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class PlannedRepository(msgspec.Struct, frozen=True):
    """A repository to clone. revision: changes when another attempt may come out otherwise."""

    id: str
    url: str
    mount_path: str
    checkout: dict[str, Any] | None = None
    revision: str = ""


class SandboxPlan(msgspec.Struct, frozen=True):
    """What a sandbox of a session is to have, beside its files.

    way: how it gets out; None if not at all. environment: variables, whose values are never secrets.
    """

    way: Way | None = None
    environment: dict[str, str] = {}
    repositories: list[PlannedRepository] = []
    type: Literal["sandbox_plan"] = "sandbox_plan"


class ReportRepository(Request):
    """The body of ``POST /corral/v1/sessions/{id}/repositories/{id}/failure``."""

    error: Literal[
        "repository_authentication_error",
        "repository_forbidden_error",
        "repository_not_found_error",
        "repository_checkout_error",
        "repository_clone_error",
    ]
    message: Annotated[str, Meta(min_length=1, max_length=2000)]


class RepositoryReported(msgspec.Struct, tag="repository_reported", kw_only=True):
    """What such a report is answered with."""

    id: str


class EgressDecision(msgspec.Struct, kw_only=True):
    """How often a session's sandbox has asked for a host, and what was decided."""

    host: str
    port: int
    decision: str
    reason: str
    requests: int
    first_at: str
    last_at: str
