"""What a session may reach besides what anyone may: its environment's internal hosts and network rules."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from corral.gateway.addresses import NotReachable, Reach
from corral.wire.environments import Cloud, Config, Limited, host_allowed


class SessionReach:
    """Gives each environment its own `Reach`."""

    def __init__(self, reach: Reach, by_environment: Mapping[str, Sequence[str]]) -> None:
        self._reach: Final = reach
        self._by_environment: Final = dict(by_environment)

    def of_environment(self, environment_id: str, name: str) -> Reach:
        """What is reachable from an environment, by what the operator has named."""
        further = [*self._by_environment.get(environment_id, ()), *self._by_environment.get(name, ())]
        return self._reach.plus(further)


def check_mcp_host(config: Mapping[str, Any], url: str) -> None:
    """Hold an MCP server's host against an environment's networking (contract section 7.2).

    Raises:
        NotReachable: networking is ``limited``, does not let MCP servers in, and does not list the host.
    """
    parsed = msgspec.convert(config, Config)
    if not isinstance(parsed, Cloud) or not isinstance(parsed.networking, Limited):
        return
    host = urlsplit(url).hostname or ""
    if parsed.networking.allow_mcp_servers or host_allowed(host, parsed.networking.allowed_hosts):
        return
    raise NotReachable(host, "the environment's allowed_hosts do not name it", refused=True)
