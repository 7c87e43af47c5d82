"""How much of everything the stress tests do, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fleet:
    """A whole deployment under which everything is killed."""

    servers: int = 3
    gateways: int = 2
    workers: int = 4
    sessions: int = 8
    turns: int = 80
    kills: int = 24
    seed: int = 1


@dataclass(frozen=True)
class Partition:
    """A cut that outlives every connection."""

    seconds: float = 45.0


@dataclass(frozen=True)
class SlowReaders:
    """Many clients that do not read, on one server."""

    readers: int = 300
    rounds: int = 5
    memory_mib_per_reader: float = 1.0
    """What a server may grow by for each of them."""


@dataclass(frozen=True)
class RollingRestarts:
    """Restarts under load, one server after the other."""

    restarts: int = 6
    sessions: int = 8


FLEET = Fleet()
PARTITION = Partition()
SLOW_READERS = SlowReaders()
ROLLING_RESTARTS = RollingRestarts()
