"""Addresses of git repositories, and where one is cloned to (contract section 9)."""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from corral.wire.addresses import BadHost, parse_host
from corral.wire.errors import InvalidRequest

WORKSPACE: Final = "/workspace"
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
# One that git takes for a branch, and no program for an option, a path upwards or a lock file.
_BRANCH: Final = re.compile(
    r"(?!.*(?:\.\.|//|@\{|\.lock$|\.$|/$|/\.))[^\x00-\x20\x7f~^:?*\[\\.\-/][^\x00-\x20\x7f~^:?*\[\\]*"
)
_SHA: Final = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_HTTPS: Final = 443
_PATH_LENGTH: Final = 1024
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class Repository(msgspec.Struct, frozen=True):
    """A repository that is attached to a session. path: ``/owner/name``; id: the resource's."""

    id: str
    url: str
    host: str
    port: int
    path: str

    @property
    def name(self) -> str:
        """The last part of its path, which names the folder that it is cloned to."""
        return self.path.rpartition("/")[2]


def parse_repository(url: str, git_hosts: Sequence[str], where: str, id: str = "") -> Repository:
    """The repository of a URL such as ``https://github.com/owner/repo``.

    Raises:
        InvalidRequest: it is no such URL, or of a host that the operator has not named; `where`, such as
            ``resources[0].``, goes before the field.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _HTTPS
        host = str(parse_host(parts.hostname or ""))
    except (BadHost, ValueError):
        raise _refused(url, where) from None
    segments = parts.path.split("/")[1:]
    plain = url == f"https://{parts.netloc}{parts.path}" and "@" not in parts.netloc
    if not plain or len(segments) < 2 or not all(_SEGMENT.fullmatch(one) for one in segments):
        raise _refused(url, where)
    named = host if port == _HTTPS else f"{host}:{port}"
    allowed = {entry.lower() for entry in git_hosts}
    if named not in allowed:
        hosts = ", ".join(git_hosts) or "none"
        raise InvalidRequest(
            f"{where}url: repositories of {named} are not accepted by this server; its operator names "
            f"the hosts in gateway.git_hosts (now: {hosts})"
        )
    if len(segments) > 2 and host == "github.com":
        raise _refused(url, where)
    if segments[-1].endswith(".git"):
        raise InvalidRequest(f"{where}url: must not end with .git")
    return Repository(id, url, host, port, "/" + "/".join(segments))


def _refused(url: str, where: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where}url: {url[:200]!r} must be the address of a repository such as "
        "https://github.com/owner/repo, without a user, a query or .git at its end"
    )


def clone_path(mount_path: str | None, name: str, where: str) -> str:
    """Where a repository is cloned to: a folder below ``/workspace``, by default of the repository's name.

    A path that is given is rooted there, as a file's is in the folder of uploads.

    Raises:
        InvalidRequest: it leads out of there, is the workspace itself, or belongs to Corral; `where` goes
            before the field.
    """
    given = name if mount_path is None else mount_path
    parts = [part for part in given.split("/") if part not in ("", ".")]
    if given.startswith("/"):
        if parts[:1] != ["workspace"]:
            raise InvalidRequest(f"{where}mount_path: {given!r} must lie below {WORKSPACE}")
        parts = parts[1:]
    if ".." in parts:
        raise InvalidRequest(f"{where}mount_path: {given!r} escapes {WORKSPACE}")
    if not parts:
        raise InvalidRequest(f"{where}mount_path: {given!r} names no folder below {WORKSPACE}")
    if _CONTROLS.search(given):
        raise InvalidRequest(f"{where}mount_path: must not hold control characters")
    if parts[0] == ".corral" or ".git" in (part.lower() for part in parts):
        raise InvalidRequest(f"{where}mount_path: {given!r} lies in a folder that is in use")
    path = "/".join((WORKSPACE, *parts))
    if len(path.encode()) > _PATH_LENGTH or any(len(part.encode()) > 255 for part in parts):
        raise InvalidRequest(f"{where}mount_path: is too long")
    return path


def check_branch(name: str, where: str) -> None:
    """Refuse what cannot be a branch.

    Raises:
        InvalidRequest: it cannot; `where` goes before the field.
    """
    if _BRANCH.fullmatch(name) is None:
        raise InvalidRequest(f"{where}checkout.name: {name!r} is not a valid branch name")


def check_sha(sha: str, where: str) -> None:
    """Refuse what is no commit.

    Raises:
        InvalidRequest: it is not 7 to 64 hexadecimal digits in lower case; `where` goes before the field.
    """
    if _SHA.fullmatch(sha) is None:
        raise InvalidRequest(f"{where}checkout.sha: {sha!r} must have 7 to 64 hexadecimal digits")
