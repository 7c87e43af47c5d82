"""Tunnels: this server has none, and says why (contract section 20, docs/differences.md)."""

from typing import Final

from starlette.types import ASGIApp

from corral.api.call import Call
from corral.api.describe import Never
from corral.api.principals import APPLICATION
from corral.api.routing import Route
from corral.wire.errors import NotFound

_TUNNEL: Final = "/v1/tunnels/{tunnel_id}"
_CERTIFICATES: Final = _TUNNEL + "/certificates"


async def absent(_: Call) -> ASGIApp:
    """Every tunnel route.

    Raises:
        NotFound: always; the message says what to do instead.
    """
    raise NotFound(
        "A self-hosted server has no tunnels: it stands inside your network, so its gateway reaches the MCP "
        "servers there directly, by their own address. Name that address in the agent's mcp_servers."
    )


ROUTES = tuple(
    Route(method, path, APPLICATION, absent, says, gives=Never())
    for method, path, says in (
        ("POST", "/v1/tunnels", "Make a tunnel; this server has none"),
        ("GET", "/v1/tunnels", "List tunnels; this server has none"),
        ("GET", _TUNNEL, "Look at a tunnel; this server has none"),
        ("POST", _TUNNEL + "/archive", "Archive a tunnel; this server has none"),
        ("POST", _TUNNEL + "/reveal_token", "Reveal a tunnel's token; this server has none"),
        ("POST", _TUNNEL + "/rotate_token", "Change a tunnel's token; this server has none"),
        ("POST", _CERTIFICATES, "Add a tunnel's certificate; this server has none"),
        ("GET", _CERTIFICATES, "List a tunnel's certificates; this server has none"),
        ("GET", _CERTIFICATES + "/{certificate_id}", "Look at a tunnel's certificate; this server has none"),
        (
            "POST",
            _CERTIFICATES + "/{certificate_id}/archive",
            "Archive a tunnel's certificate; this server has none",
        ),
    )
)
