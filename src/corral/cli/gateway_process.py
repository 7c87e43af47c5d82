"""The gateway of `corral up`: a process of its own, with the vault's private key, which no other one reads.

Its socket is ours and outlives it, so servers can ask before it is up and while it is started again.
"""

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from corral.cli.child_process import ChildProcess
from corral.cli.failure import CANNOT_OPEN
from corral.settings import Settings

_CANNOT_START: Final = (
    "the gateway cannot start: sessions run, but without MCP servers and credentials. Follow its advice "
    "above and start Corral again"
)


class GatewayProcess(ChildProcess):
    """A `corral gateway` on a loopback port, started again whenever it dies, except for want of its keys."""

    def __init__(
        self,
        listener: socket.socket,
        door: socket.socket,
        key_dir: Path,
        environment: Mapping[str, str],
        config: Path | None,
    ) -> None:
        descriptors = (listener.fileno(), door.fileno())
        arguments = ["gateway", "--key-dir", str(key_dir)]
        arguments += ["--listen-fd", str(descriptors[0]), "--egress-fd", str(descriptors[1])]
        if config is not None:
            arguments += ["--config", str(config)]
        super().__init__(
            "gateway",
            arguments,
            environment,
            hopeless={CANNOT_OPEN: _CANNOT_START},
            pass_fds=descriptors,
        )


def gateway_environment(environ: Mapping[str, str], settings: Settings, database_url: str) -> dict[str, str]:
    """The variables of the gateway: ours, without the keys of servers and models, with the database."""
    hidden = ("ANTHROPIC_", "CORRAL_INFERENCE__", "CORRAL_SERVER__", "CORRAL_WORKER__")
    ours = {name: value for name, value in environ.items() if not name.startswith(hidden)}
    return {
        **ours,
        "CORRAL_STORE__URL": database_url,
        "CORRAL_LOG__LEVEL": settings.log.level,
        "CORRAL_LOG__FORMAT": settings.log.format,
    }
