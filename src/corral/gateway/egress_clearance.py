"""Whether one request of a sandbox may be made: judged by its session as it is now, and by the address."""

import ssl
from dataclasses import dataclass, field
from typing import Final, NoReturn

from corral.gateway.addresses import NotReachable, Pinned, Reach
from corral.gateway.certificates import Authority
from corral.gateway.egress_log import Decision, EgressLog
from corral.gateway.egress_rows import EgressRows, EgressSession
from corral.gateway.http_sides import Refused, Times
from corral.gateway.policy import Target, Verdict, Walls
from corral.gateway.shares import Shares
from corral.hands.work_token import TokenHash

_LOOKUPS: Final = 8
_WHOLE_BODIES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What all connections share. public, internal: how servers are verified, by where they are.

    lookups: of names, which may be slow to resolve. bodies: that are held in memory as a whole.
    """

    rows: EgressRows
    log: EgressLog
    authority: Authority
    reach: Reach
    internal_by_environment: dict[str, list[str]]
    walls: Walls
    public: ssl.SSLContext
    internal: ssl.SSLContext
    times: Times
    body_bytes: int
    rewritten_bytes: int
    lookups: Shares = field(default_factory=lambda: Shares(_LOOKUPS))
    bodies: Shares = field(default_factory=lambda: Shares(_WHOLE_BODIES))

    def reach_of(self, session: EgressSession) -> Reach:
        """Where this session's environment may be connected to."""
        by = self.internal_by_environment
        names = (session.environment_id, session.environment_name)
        return self.reach.plus([entry for name in dict.fromkeys(names) for entry in by.get(name, [])])


@dataclass(frozen=True, slots=True)
class Cleared:
    """A request that may be made: where to, whose session it is, and the address that was checked."""

    target: Target
    session: EgressSession
    verdict: Verdict
    pinned: tuple[Pinned, ...]

    @property
    def internal(self) -> bool:
        """Whether all of it is internal, and so reachable because the operator has named it."""
        return all(pinned.is_internal for pinned in self.pinned)


class Clearance:
    """Judges what one connection asks for. token: the work item's, asked about anew each time."""

    def __init__(self, house: House, token: TokenHash, session_id: str) -> None:
        self._house = house
        self._token = token
        self._session_id = session_id

    async def clear(self, target: Target) -> Cleared:
        """Judge a target by the session as it is now. Raises `Refused`."""
        session = await self._house.rows.session(self._token)
        if session is None:
            raise Refused(403, "this sandbox has no access to the network: its work item has ended")
        verdict = session.rules.judge(target.host, self._house.walls)
        if not verdict.allowed:
            self._deny(target, verdict.reason)
        try:
            async with self._house.lookups.one(session.id):
                pinned = await self._house.reach_of(session).resolve(target.host, target.port)
        except NotReachable as error:
            if error.refused:
                self._deny(target, error.reason)
            self.note(target, "failed", error.reason)
            raise Refused(502, str(error)) from None
        cleared = Cleared(target, session, verdict, tuple(pinned))
        port = session.rules.check_port(target.port, self._house.walls, internal=cleared.internal)
        if not port.allowed:
            self._deny(target, port.reason)
        return cleared

    def note(self, target: Target, decision: Decision, reason: str) -> None:
        """Take down what was decided about a request."""
        self._house.log.note(self._session_id, target.host, target.port, decision, reason)

    def _deny(self, target: Target, reason: str) -> NoReturn:
        self.note(target, "denied", reason)
        raise Refused(403, f"{target.host}:{target.port} may not be reached from this sandbox: {reason}")
