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
    cuts: int = 0
    """How often the cables of a server's and of a worker's own machine are pulled out."""
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


@dataclass(frozen=True)
class OpenStreams:
    """Streams that are open at the same time, on one server."""

    streams: int = 2_000
    sessions: int = 20
    turns: int = 3
    kib_per_stream: float = 40.0


@dataclass(frozen=True)
class ReconnectStorms:
    """Readers that all hang up and come back at the same moment."""

    streams: int = 500
    sessions: int = 5
    storms: int = 6
    growth_mib: float = 32.0
    """What the server may have grown by after the last storm, beyond what it had after the first."""


@dataclass(frozen=True)
class IdleSessions:
    """Sessions that are only there."""

    before: int = 2_000
    """Made before it is measured: what a server keeps for all sessions together is then there."""
    sessions: int = 10_000
    bytes_per_session: float = 256.0
    """Memory is counted in pages; that is taken for none."""


@dataclass(frozen=True)
class ConcurrentTurns:
    """Sessions that wait for the model at the same moment, on one server."""

    turns: int = 500
    kib_per_turn: float = 400.0


@dataclass(frozen=True)
class OneSession:
    """Servers that all want the same session."""

    servers: int = 3
    messages: int = 60


@dataclass(frozen=True)
class OneQueue:
    """Workers that poll the same queue, on several servers."""

    servers: int = 2
    workers: int = 40
    items: int = 200


@dataclass(frozen=True)
class LargeOutputs:
    """Results of tools of many megabytes."""

    bytes: int = 10_000_000
    sessions: int = 5
    readers: int = 4
    growth_mib: float = 600.0
    """What the server may grow by: an output is in a request, a commit, a model request, and each stream."""


@dataclass(frozen=True)
class Responsive:
    """How long the event loop of a server may be held up, whatever it is under; sampled all its life."""

    computing_p95_seconds: float = 0.25
    computing_worst_seconds: float = 1.5
    late_p95_seconds: float = 2.0
    """Waiting for a processor counts as well here, and a busy machine has few to give."""


FLEET = Fleet()
FLEET_WITH_CUTS = Fleet(kills=8, cuts=8, turns=60)
PARTITION = Partition()
SLOW_READERS = SlowReaders()
ROLLING_RESTARTS = RollingRestarts()
OPEN_STREAMS = OpenStreams()
RECONNECT_STORMS = ReconnectStorms()
IDLE_SESSIONS = IdleSessions()
CONCURRENT_TURNS = ConcurrentTurns()
ONE_SESSION = OneSession()
ONE_QUEUE = OneQueue()
LARGE_OUTPUTS = LargeOutputs()
RESPONSIVE = Responsive()

# The short forms, for `make test`.
FEW_STREAMS = OpenStreams(streams=100, sessions=2, turns=2)
SHORT_STORMS = ReconnectStorms(streams=30, sessions=2, storms=2)
FEW_IDLE_SESSIONS = IdleSessions(before=0, sessions=30)
FEW_TURNS = ConcurrentTurns(turns=30)
SHORT_SESSION = OneSession(servers=2, messages=8)
SHORT_QUEUE = OneQueue(servers=2, workers=6, items=12)
FEW_OUTPUTS = LargeOutputs(sessions=1, readers=2)
