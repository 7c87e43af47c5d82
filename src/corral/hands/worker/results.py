"""Tool results on their way to the server: the same body again and again until it is there (or moot)."""

import asyncio
from typing import Any, Final

import msgspec
import structlog

from corral.hands.sandbox.provider import ToolOutput
from corral.hands.worker.client import WorkApi
from corral.hands.worker.failures import ApiFailure
from corral.hands.worker.lease import Lease
from corral.hands.worker.ledger import ToolCall
from corral.hands.worker.pace import Backoff, Pace
from corral.wire.secret import Secret

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_REFUSED: Final = frozenset({400, 413, 422})


_UNKNOWN_OUTCOME: Final = (
    "The outcome of this call is unknown: the worker that had begun it was lost. It was not run again. "
    "Check what it has done before you repeat it."
)
_KEPT: Final = 256


def error_output(text: str) -> ToolOutput:
    """A result that tells the model what went wrong."""
    return ToolOutput(content=[{"type": "text", "text": text}], is_error=True)


def encoded(call: ToolCall, output: ToolOutput) -> bytes:
    """The body of the request that answers a call."""
    event: dict[str, Any] = {
        "type": "user.tool_result",
        "tool_use_id": call.id,
        "content": output.content,
        "is_error": output.is_error,
    }
    return msgspec.json.encode({"events": [event]})


class Undelivered:
    """What calls have returned that the server was not told before the lease was lost; the latest few.

    A claim that comes later gives it as the outcome of a call that had begun and must not be run again.
    """

    def __init__(self) -> None:
        self._outputs: dict[tuple[str, str], ToolOutput] = {}

    def keep(self, session_id: str, call: ToolCall, output: ToolOutput) -> None:
        """Keep a call's result."""
        self._outputs[session_id, call.id] = output
        while len(self._outputs) > _KEPT:
            del self._outputs[next(iter(self._outputs))]

    def outcome(self, session_id: str, call: ToolCall) -> ToolOutput:
        """The result of a call that had begun; an error that says it is unknown, if it was not kept."""
        kept = self._outputs.pop((session_id, call.id), None)
        return error_output(_UNKNOWN_OUTCOME) if kept is None else kept


class Results:
    """Posts the results of one session for as long as the item's lease is ours."""

    def __init__(
        self,
        api: WorkApi,
        session_id: str,
        key: Secret,
        lease: Lease,
        pace: Pace,
        undelivered: Undelivered,
    ) -> None:
        self._undelivered = undelivered
        self._api = api
        self._session_id = session_id
        self._key = key
        self._lease = lease
        self._pace = pace

    async def post(self, call: ToolCall, output: ToolOutput) -> None:
        """Post a result; returns once it is there, or nobody wants it any more.

        A server that refuses what the tool returned gets an error in its place, so that the turn goes on.
        """
        try:
            refusal = await self._post(encoded(call, output), call)
        finally:
            if not self._lease.is_ours:
                self._undelivered.keep(self._session_id, call, output)
        if refusal is None:
            return
        substitute = error_output(f"The server did not take the result of this call: {refusal}")
        again = await self._post(encoded(call, substitute), call)
        if again is not None:
            _log.info("result dropped", tool_use_id=call.id, session_id=self._session_id, reason=again)

    async def _post(self, body: bytes, call: ToolCall) -> str | None:
        """None if there is nothing more to do, else why the server refused the body."""
        backoff = Backoff(self._pace)
        while self._lease.is_ours:
            try:
                await self._api.send_result(self._session_id, self._key, body)
            except ApiFailure as failure:
                if failure.status in _REFUSED:
                    return str(failure)
                if failure.status in (401, 403):
                    self._lease.lose()
                if not failure.may_pass:
                    _log.info(
                        "result refused", tool_use_id=call.id, status=failure.status, reason=str(failure)
                    )
                    return None
                _log.info("result not delivered yet", tool_use_id=call.id, reason=str(failure))
                await asyncio.sleep(backoff.next(failure.retry_after))
            else:
                return None
        _log.warning("result lost with the lease", tool_use_id=call.id, session_id=self._session_id)
        return None
