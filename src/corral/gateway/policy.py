"""Which hosts a sandbox may reach (contract section 7.2), and which requests may have a repository's token.

Pure: decided from the environment's networking, the agent's MCP servers and the session's repositories. That
an allowed name also leads to an address that may be reached is for `corral.gateway.addresses`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from corral.wire.addresses import Address, BadHost, parse_host
from corral.wire.environments import Cloud, Config, Limited, host_allowed
from corral.wire.repositories import Repository

Scheme: TypeAlias = Literal["http", "https"]

DEFAULT_PORTS: Final[dict[Scheme, int]] = {"http": 80, "https": 443}
_GITHUB: Final = "github.com"
_GITHUB_API: Final = "api.github.com"
# What a git client asks for; nothing that could be read as a way to another path.
_GIT_PATH: Final = re.compile(
    r"(?:\.git)?/(?:info/refs|git-upload-pack|git-receive-pack|info/lfs/[A-Za-z0-9/]+)"
)
_API_PATH: Final = re.compile(r"(?:/[A-Za-z0-9_.~!$&'()*+,;=:@-]+)*/?")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: the host in its plain form, so that each has one spelling alone."""

    scheme: Scheme
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a host may be reached, and the rule that says so. `only`: no more than these repositories."""

    allowed: bool
    reason: str
    only: tuple[Repository, ...] = ()


@dataclass(frozen=True, slots=True)
class Walls:
    """What the operator has set for all sessions (`gateway.egress_ports`, `gateway.package_hosts`)."""

    ports: frozenset[int] = frozenset(DEFAULT_PORTS.values())
    package_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What a session may reach: by its environment, its agent's MCP servers, its repositories."""

    config: Config
    mcp_urls: Sequence[str] = ()
    repositories: Sequence[Repository] = ()

    def judge(self, host: str, walls: Walls) -> Verdict:
        """Whether the host may be reached, by name alone."""
        if not isinstance(self.config, Cloud):
            return Verdict(False, "the environment is self-hosted: its sandboxes are not the server's")
        if not isinstance(self.config.networking, Limited):
            return Verdict(True, "unrestricted")
        networking = self.config.networking
        if host_allowed(host, networking.allowed_hosts):
            return Verdict(True, "allowed_hosts")
        if networking.allow_mcp_servers and host in _hosts(self.mcp_urls):
            return Verdict(True, "mcp_server")
        if networking.allow_package_managers and host_allowed(host, list(walls.package_hosts)):
            return Verdict(True, "package_manager")
        attached = tuple(one for one in self.repositories if host in _hosts_of(one))
        if attached:
            return Verdict(True, "repository", attached)
        if networking.allow_package_managers and not walls.package_hosts:
            return Verdict(False, "not in allowed_hosts (the operator has named no gateway.package_hosts)")
        return Verdict(False, "not in the environment's allowed_hosts")

    def check_port(self, port: int, walls: Walls, *, internal: bool) -> Verdict:
        """Whether the port may be reached; on internal hosts that the operator has named, every one may."""
        if internal or not walls.ports or port in walls.ports:
            return Verdict(True, "port")
        return Verdict(False, "port not in gateway.egress_ports")


def repository_of(target: Target, raw_path: str, repositories: Sequence[Repository]) -> Repository | None:
    """The repository that a request is for, which alone may have its token; None for any other request.

    Only over TLS, and only where the path, as it stands, is one that git or the host's own API use for it.
    """
    if target.scheme != "https":
        return None
    path = raw_path.partition("?")[0]
    for one in repositories:
        if _is_of(target, path, one):
            return one
    return None


def is_api(target: Target) -> bool:
    """Whether requests to this host are for GitHub's REST API rather than for git itself."""
    return target.host == _GITHUB_API


def _is_of(target: Target, path: str, repository: Repository) -> bool:
    if target.host == repository.host and target.port == repository.port:
        rest = _rest(path, repository.path, repository.host)
        return rest is not None and _GIT_PATH.fullmatch(rest) is not None and ".." not in rest
    if repository.host == _GITHUB and target.host == _GITHUB_API and target.port == DEFAULT_PORTS["https"]:
        rest = _rest(path, f"/repos{repository.path}", repository.host)
        return (
            rest is not None
            and _API_PATH.fullmatch(rest) is not None
            and not any(part in (".", "..") for part in rest.split("/"))
        )
    return False


def _rest(path: str, prefix: str, host: str) -> str | None:
    found = path[: len(prefix)]
    # GitHub takes its names in any case; elsewhere another case may be another repository.
    same = found.lower() == prefix.lower() if host == _GITHUB else found == prefix
    return path[len(prefix) :] if same else None


def _hosts_of(repository: Repository) -> tuple[str, ...]:
    return (_GITHUB, _GITHUB_API) if repository.host == _GITHUB else (repository.host,)


def _hosts(urls: Sequence[str]) -> frozenset[str]:
    found = set[str]()
    for url in urls:
        try:
            found.add(str(parse_host(urlsplit(url).hostname or "")))
        except (BadHost, ValueError):
            continue  # checked when the agent was made; what is no host opens none
    return frozenset(found)


def parse_target(scheme: Scheme, authority: str) -> Target:
    """The target of a ``host``, ``host:port`` or ``[address]:port``.

    Raises:
        BadHost: it is none, or a host that different programs would read differently.
    """
    if any(character in authority for character in "@/?#\\ \t"):
        raise BadHost("not a valid host")
    host, port = authority, ""
    if authority.startswith("["):
        host, bracket, rest = authority.partition("]")
        host += bracket
        if rest and not rest.startswith(":"):
            raise BadHost("not a valid host")
        port = rest[1:]
        if rest == ":":
            raise BadHost("the port is empty")
    elif ":" in authority:
        host, _, port = authority.partition(":")
        if not port:
            raise BadHost("the port is empty")
    if port and not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise BadHost("not a valid port")
    parsed: str | Address = parse_host(host)
    return Target(scheme, str(parsed), int(port) if port else DEFAULT_PORTS[scheme])
