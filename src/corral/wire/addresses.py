"""Which addresses a program of ours may connect to on behalf of others. Pure: names are resolved elsewhere.

Three kinds: addresses of the internet; internal ones, which an operator may name as reachable (`Internal`);
and some that nobody may name, such as those where a cloud hands out credentials to whoever asks.

A host can be written in many ways that mean the same address (``0177.0.0.1``, ``2130706433``,
``::ffff:7f00:1``). Here one is either brought into its plain form or refused, so that what is checked is what
is connected to.
"""

import re
from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_NEVER: Final[tuple[tuple[str, str], ...]] = (
    ("169.254.0.0/16", "a link-local address, where clouds keep the machine's own credentials"),
    ("fe80::/10", "a link-local address"),
    ("fd00:ec2::/32", "a cloud's metadata address"),
    ("fd20:ce::/32", "a cloud's metadata address"),
    ("168.63.129.16/32", "a cloud's metadata address"),
    ("100.100.100.200/32", "a cloud's metadata address"),
    ("192.0.0.192/32", "a cloud's metadata address"),
    ("0.0.0.0/8", "no address of a machine"),
    ("::/128", "no address of a machine"),
    ("224.0.0.0/4", "a multicast address"),
    ("ff00::/8", "a multicast address"),
    ("255.255.255.255/32", "a broadcast address"),
    ("2002::/16", "a 6to4 address, which hides another"),
    ("2001::/32", "a Teredo address, which hides another"),
)
_NEVER_NETWORKS: Final = tuple((ip_network(network), reason) for network, reason in _NEVER)
_NAT64: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"))
_COMPATIBLE: Final = ip_network("::/96")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# The last label of what the C library takes for an IPv4 address in one of its older forms.
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LONGEST_NAME: Final = 253


class BadHost(ValueError):
    """A host that is none, or is written in a form that means different things to different programs."""


def parse_host(host: str) -> str | Address:
    """A host as a plain name (lower case, no dot at its end) or an address, from a URL or a setting.

    Raises:
        BadHost: it is neither, or an address in any but its usual form; the message says what is wrong.
    """
    text = host.strip().lower()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if ":" in text:
        if "%" in text:
            raise BadHost("an address with a zone is not accepted")
        try:
            return plain(IPv6Address(text))
        except ValueError:
            raise BadHost("not a valid host") from None
    text = text.removesuffix(".")
    labels = text.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return IPv4Address(text)
        except ValueError:
            raise BadHost("an IPv4 address must have four decimal parts without leading zeros") from None
    if not text.isascii():
        raise BadHost("a name with other than ASCII characters must be given in its xn-- form")
    if len(text) > _LONGEST_NAME or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadHost("not a valid host")
    return text


def plain(address: Address) -> Address:
    """The address that is meant: of an IPv6 form that only wraps an IPv4 address, that one."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _COMPATIBLE and int(address) > 1:
            return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def never(address: Address) -> str | None:
    """Why nobody may ever be connected to this address, whatever an operator says; None if that is not so."""
    for inner in _meant(address):
        for network, reason in _NEVER_NETWORKS:
            if inner.version == network.version and inner in network:
                return f"it is {reason}"
    return None


def not_public(address: Address) -> str | None:
    """Why this is not an address of the internet; None if it is one."""
    refused = never(address)
    if refused is not None:
        return refused
    for inner in _meant(address):
        if inner.is_loopback:
            return "it is a loopback address"
        if any(inner in network for network in _NAT64 if inner.version == network.version):
            continue  # what it leads to is looked at by itself
        site_local = isinstance(inner, IPv6Address) and inner.is_site_local
        if not inner.is_global or inner.is_reserved or site_local:
            return "it is a private or reserved address"
    return None


class Internal:
    """Internal hosts and ranges that an operator has named: names, ``*.`` wildcards, addresses, ranges."""

    def __init__(self, entries: Sequence[str] = ()) -> None:
        """Raises `BadHost` if an entry is none of these, or names an address that is never reachable."""
        self.entries: Final = tuple(entries)
        self._names = set[str]()
        self._suffixes = list[str]()
        self._networks = list[Network]()
        for entry in entries:
            self._add(entry.strip())

    def admits(self, host: str | Address, address: Address) -> bool:
        """Whether `host`, which has this address, may be reached though it is not of the internet."""
        if never(address) is not None:
            return False
        if any(address.version == network.version and address in network for network in self._networks):
            return True
        return isinstance(host, str) and self.names(host)

    def names(self, host: str) -> bool:
        """Whether the host is among them by its name."""
        return host in self._names or any(host.endswith(suffix) for suffix in self._suffixes)

    def _add(self, entry: str) -> None:
        network = _network(entry)
        if network is not None:
            refused = never(network.network_address) if network.num_addresses == 1 else None
            if refused is not None:
                raise BadHost(f"{entry} can never be reached: {refused}")
            self._networks.append(network)
            return
        try:
            if entry.startswith("*."):
                parsed = parse_host(entry[2:])
                if not isinstance(parsed, str):
                    raise BadHost("a wildcard needs a name")
                self._suffixes.append("." + parsed)
            else:
                parsed = parse_host(entry)
                assert isinstance(parsed, str)
                self._names.add(parsed)
        except BadHost as error:
            raise BadHost(
                f"{entry!r}: {error}; give a name such as git.corp.example, *.corp.example, an address, or a "
                "range such as 10.0.0.0/8"
            ) from None


def _network(entry: str) -> Network | None:
    try:
        return ip_network(entry.strip("[]"))
    except ValueError as error:
        if "/" in entry:
            raise BadHost(f"{entry!r} is not a range of addresses: {error}") from None
        return None


def _meant(address: Address) -> tuple[Address, ...]:
    """The address itself, and the one that it leads to by translation."""
    address = plain(address)
    if isinstance(address, IPv6Address) and any(address in network for network in _NAT64):
        return address, IPv4Address(int(address) & 0xFFFFFFFF)
    return (address,)


def checked_address(text: str) -> Address:
    """An address as a resolver gives it, without its zone.

    Raises:
        ValueError: it is none.
    """
    return plain(ip_address(text.partition("%")[0]))
