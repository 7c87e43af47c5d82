"""Telling endpoints what has happened: attempts, repetitions, and when one is disabled (section 23)."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from corral.resources.webhook_outbox import Claimed, Outbox
from corral.resources.webhook_sender import Outcome, Sender
from corral.wire.secret import Secret
from corral.wire.webhook_signing import signed_headers
from corral.wire.webhooks import message

REDIRECTED: Final = "auto-disabled: endpoint URL returned a redirect (3xx)"
REFUSED: Final = "auto-disabled: endpoint URL resolved to an invalid address"
FAILING: Final = "auto-disabled after sustained delivery failures"
"""The documented reasons (contract section 23)."""

_MARGIN_SECONDS: Final = 30.0
"""What an attempt's lease has beyond its time limit: nobody repeats one that is still under way."""
_GROWTH: Final = 6.0
"""By how much the wait after an attempt grows: two waits fill the documented 5 to 120 seconds."""

_log = structlog.get_logger(__name__)


class DeliveryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, how long and how many at a time. Times are in seconds."""

    attempts: int = 3
    timeout: float = 10.0
    backoff: float = 5.0
    backoff_max: float = 120.0
    disable_after: float = 259_200.0
    at_once: int = 64
    """Attempts of one server at the same time."""
    at_once_each: int = 8
    """Attempts at one endpoint at the same time, by all servers."""
    keep: float = 259_200.0
    organization_id: str = "corral"
    workspace_id: str = "default"

    def delay(self, attempts: int) -> float:
        """Seconds to wait after attempt number `attempts` has failed."""
        longest = min(self.backoff_max, self.backoff * _GROWTH ** min(attempts, 10))
        return random.uniform(max(self.backoff, longest / 2), longest)  # noqa: S311  # spreads load


class WebhookDeliveries:
    """What takes the outbox to the endpoints. Any number of servers may do it at the same time.

    `declared` has the signing secrets of the endpoints that the settings declare, by their names.
    """

    def __init__(
        self,
        outbox: Outbox,
        sender: Sender,
        policy: DeliveryPolicy,
        declared: Mapping[str, Sequence[Secret]],
    ) -> None:
        self._outbox = outbox
        self._sender = sender
        self._policy = policy
        self._declared = declared
        self._working = False
        self._wanted = asyncio.Event()

    async def deliver_due(self) -> None:
        """Make every attempt that is due. Called while it is at work here already, it works for both."""
        self._wanted.set()
        if self._working:
            return
        self._working = True
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._work(tasks)
        finally:
            self._working = False

    async def prune(self) -> None:
        """Forget what was settled long ago."""
        removed = await self._outbox.prune(self._policy.keep)
        if removed:
            _log.info("old webhook deliveries were removed", deliveries=removed)

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        under_way: set[asyncio.Task[None]] = set()
        while self._wanted.is_set() or under_way:
            if self._wanted.is_set():
                self._wanted.clear()
                room = self._policy.at_once - len(under_way)
                claimed = await self._outbox.claim(
                    room=room,
                    each=self._policy.at_once_each,
                    lease=self._policy.timeout + _MARGIN_SECONDS,
                )
                under_way |= {tasks.create_task(self._attempt(one)) for one in claimed}
                if claimed and len(under_way) < self._policy.at_once:
                    self._wanted.set()
                    continue
            if not under_way:
                continue
            waking = asyncio.create_task(self._wanted.wait())
            try:
                done, _ = await asyncio.wait({*under_way, waking}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()
            if ended := under_way & done:
                under_way -= ended
                self._wanted.set()  # there is room again, for this endpoint too

    async def _attempt(self, claimed: Claimed) -> None:
        try:
            await self._tell(claimed)
        except Exception:
            # One endpoint must not stop the others; when the lease ends the attempt is made again.
            _log.exception(
                "an attempt to deliver a webhook event broke off",
                webhook_id=claimed.endpoint_id,
                event_id=claimed.event_id,
            )

    async def _tell(self, claimed: Claimed) -> None:
        if claimed.attempts > self._policy.attempts:
            # Its server died in the last attempt; whether that arrived nobody knows.
            await self._give_up(claimed, None, "the server stopped during the last attempt")
            return
        signing = self._signing(claimed)
        if not signing:
            await self._give_up(claimed, None, "webhooks.secrets has no secret for this endpoint")
            return
        body = message(
            claimed.event_id,
            claimed.type,
            claimed.occurred_at,
            {"id": claimed.subject, **claimed.extra},
            organization_id=self._policy.organization_id,
            workspace_id=self._policy.workspace_id,
        )
        now = int(datetime.now(UTC).timestamp())
        headers = signed_headers(claimed.event_id, now, body, signing)
        outcome = await self._sender.send(claimed.url, body, headers)
        await self._settle(claimed, outcome)

    def _signing(self, claimed: Claimed) -> Sequence[Secret]:
        if claimed.declared is not None:
            return self._declared.get(claimed.declared, ())
        return [Secret(text) for text in (claimed.secret, claimed.former_secret) if text is not None]

    async def _settle(self, claimed: Claimed, outcome: Outcome) -> None:
        error = outcome.error or ""
        match outcome.kind:
            case "taken":
                assert outcome.status is not None
                await self._outbox.delivered(claimed, outcome.status)
            case "redirected":
                await self._disable(claimed, REDIRECTED, outcome.status, error)
            case "refused":
                await self._disable(claimed, REFUSED, outcome.status, error)
            case "failed":
                if claimed.attempts >= self._policy.attempts:
                    await self._give_up(claimed, outcome.status, error)
                    return
                delay = self._policy.delay(claimed.attempts)
                await self._failed(claimed, outcome.status, error, delay)

    async def _give_up(self, claimed: Claimed, status: int | None, error: str) -> None:
        _log.warning(
            "a webhook event was dropped after its last attempt",
            webhook_id=claimed.endpoint_id,
            event_id=claimed.event_id,
            event_type=claimed.type,
            error=error,
        )
        await self._failed(claimed, status, error, None)

    async def _failed(self, claimed: Claimed, status: int | None, error: str, delay: float | None) -> None:
        enough = await self._outbox.failed(
            claimed,
            status=status,
            error=error,
            retry_in=delay,
            patience=self._policy.disable_after,
            most=self._policy.attempts,
        )
        if enough:
            await self._disable(claimed, FAILING, status, error)

    async def _disable(self, claimed: Claimed, reason: str, status: int | None, error: str) -> None:
        if await self._outbox.disable(claimed, reason, status=status, error=error):
            _log.warning(
                "a webhook endpoint was disabled; `corral admin webhook enable` turns it on again",
                webhook_id=claimed.endpoint_id,
                reason=reason,
                error=error,
            )
