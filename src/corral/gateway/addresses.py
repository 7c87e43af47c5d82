"""Where agents may be connected to: a name is resolved here once, checked, and pinned to its addresses.

Whoever connects uses the address that was checked, never the name, so that a name which means another address
a moment later (rebinding) gains nothing.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, Self, TypeAlias

from corral.wire.addresses import Address, BadHost, Internal, checked_address, not_public, parse_host

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a name, as text. Raises OSError if it has none."""

_RESOLVE_SECONDS: Final = 10.0
_LOOKUP_THREADS: Final = 64


class NotReachable(Exception):
    """Agents may not be connected there, or the name does not exist; the message says why."""

    def __init__(self, host: str, reason: str, *, refused: bool) -> None:
        super().__init__(f"{host} cannot be reached: {reason}")
        self.host: Final = host
        self.reason: Final = reason
        self.refused: Final = refused
        """Whether a rule forbids it, as opposed to a name that does not resolve."""


class Pinned(NamedTuple):
    """An address that was checked: connect to `address` and `port`; the name is for TLS and Host alone."""

    host: str
    address: str
    port: int

    @property
    def is_internal(self) -> bool:
        """Whether it is no address of the internet: it may be reached because the operator has named it."""
        return not_public(checked_address(self.address)) is not None


class Reach:
    """Which hosts can be connected to: those of the internet, and the internal ones that are named."""

    def __init__(self, internal: Sequence[str] = (), *, resolver: Resolver | None = None) -> None:
        """Raises `corral.wire.addresses.BadHost` if an entry of `internal` is not understood."""
        self._internal = Internal(internal)
        self._resolver = resolver or system_resolver

    def plus(self, internal: Sequence[str]) -> Self:
        """The same with further internal hosts, such as those of one environment."""
        if not internal:
            return self
        return type(self)((*self._internal.entries, *internal), resolver=self._resolver)

    async def resolve(self, host: str, port: int) -> list[Pinned]:
        """The addresses of a host that may be connected to, in the resolver's order; at least one.

        Raises:
            NotReachable: there is none.
        """
        try:
            parsed = parse_host(host)
        except BadHost as error:
            raise NotReachable(host, str(error), refused=True) from None
        if not 0 < port < 65536:
            raise NotReachable(host, f"{port} is no port", refused=True)
        name = str(parsed)
        addresses = [parsed] if not isinstance(parsed, str) else await self._addresses(parsed, port)
        reason = "it has no address"
        pinned = list[Pinned]()
        for address in addresses:
            refused = not_public(address)
            if refused is None or self._internal.admits(parsed, address):
                pinned.append(Pinned(name, str(address), port))
            else:
                reason = f"{refused}, and gateway.internal does not name it"
        if not pinned:
            raise NotReachable(name, reason, refused=bool(addresses))
        return pinned

    async def _addresses(self, name: str, port: int) -> list[Address]:
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                found = await self._resolver(name, port)
        except TimeoutError:
            raise NotReachable(name, "its name was not resolved in time", refused=False) from None
        except (OSError, UnicodeError):
            raise NotReachable(name, "its name does not resolve", refused=False) from None
        return list(dict.fromkeys(checked_address(text) for text in found))


@contextmanager
def lookups(threads: int = _LOOKUP_THREADS) -> Generator[Resolver]:
    """This machine's resolver on threads of its own: the event loop's few are held up by a few slow names."""
    executor = ThreadPoolExecutor(threads, thread_name_prefix="lookup")

    async def resolve(name: str, port: int) -> list[str]:
        look = partial(socket.getaddrinfo, name, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(executor, look)
        return [str(entry[4][0]) for entry in found]

    try:
        yield resolve
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


async def system_resolver(name: str, port: int) -> list[str]:
    """The addresses that this machine's resolver gives."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]
