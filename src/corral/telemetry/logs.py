"""Structured logs on standard error, from which no secret comes out.

Every record, ours and any library's, passes through `Redactor` last before it is rendered. What is bound with
`structlog.contextvars.bound_contextvars` (``request_id``, ``session_id``) stands in each record made inside.
"""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TextIO, cast

import psycopg
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from corral.telemetry.redaction import Redactor
from corral.wire.secret import Secret

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "text", "json"]

_QUIET: Final[Mapping[str, int]] = {
    # At INFO these print every URL, and with it whatever a URL carries.
    "httpx": logging.WARNING,
    "httpcore": logging.WARNING,
    "httpx2": logging.WARNING,
    "httpcore2": logging.WARNING,
    "anthropic": logging.WARNING,
    # Corral writes its own line per request.
    "uvicorn.access": logging.CRITICAL,
    "uvicorn.error": logging.WARNING,
    "asyncio": logging.WARNING,
    "psycopg.pool": logging.ERROR,
    # At INFO it writes three lines a job.
    "procrastinate": logging.WARNING,
}


def configure_logs(
    level: Level = "info",
    format: Format = "auto",
    *,
    secrets: Iterable[Secret] = (),
    stream: TextIO | None = None,
) -> None:
    """Send all records of this process to ``stream`` (standard error), at ``level`` or above.

    ``secrets`` are masked wherever they stand, beside all that looks like one. ``auto`` is text on a terminal
    (with colours) and one JSON object a line elsewhere. Call it once, first.
    """
    target = sys.stderr if stream is None else stream
    terminal = target.isatty()
    as_text = format == "text" or (format == "auto" and terminal)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_shared(as_text),
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            *_rendering(as_text, terminal, Redactor(secrets)),
        ],
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name, floor in _QUIET.items():
        logger = logging.getLogger(name)
        logger.setLevel(max(floor, root.level))
        logger.handlers.clear()
        logger.propagate = True
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared(as_text),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _shared(as_text: bool) -> Sequence[Processor]:
    stamp = structlog.processors.TimeStamper("%H:%M:%S", utc=False) if as_text else _iso
    return (
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.ExtraAdder(),
        _outage_in_a_line,
        stamp,
        structlog.processors.StackInfoRenderer(),
    )


def _outage_in_a_line(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """A database that is away is no fault of the code: the library of jobs says it in one line, too."""
    held: Any = event.get("exc_info")
    error: Any = cast("tuple[Any, ...]", held)[1] if isinstance(held, tuple) else held
    if not str(event.get("logger")).startswith("procrastinate") or not isinstance(error, BaseException):
        return event
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, psycopg.OperationalError):
        del event["exc_info"]
        event["level"] = "warning"
        event["error"] = str(error)
    return event


_iso: Final = structlog.processors.TimeStamper("iso", utc=True)


def _rendering(as_text: bool, colors: bool, redactor: Redactor) -> Sequence[Processor]:
    def without_secrets(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return cast("dict[str, Any]", redactor.value(event))

    if as_text:
        # Tracebacks become text before redaction, or the renderer would print them past it.
        console = structlog.dev.ConsoleRenderer(colors=colors)
        return (structlog.processors.format_exc_info, without_secrets, console)
    json = structlog.processors.JSONRenderer(sort_keys=False, default=str)
    return (structlog.processors.format_exc_info, without_secrets, json)
