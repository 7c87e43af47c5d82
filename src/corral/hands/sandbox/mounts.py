"""What a bubblewrap sandbox sees: the file systems and the few files of /etc, as arguments and data.

Everything that is not named here does not exist inside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from corral.hands.sandbox import way_out
from corral.hands.sandbox.provider import Recipe, SandboxUnavailable

#: Where skills are shown, in the working directory.
SKILLS_FOLDER = "skills"

#: User and group inside the sandbox.
INNER_UID = 1000
INNER_GID = 1000

#: Where the program lies inside.
PROGRAM_PATH = "/run/corral/inside.pyz"

_SYSTEM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Shown read-only where the host has them. None may hold a secret: not /etc/ssl/private.
_HOST_ETC = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)
_USERS = (
    "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    "agent:x:{uid}:{gid}:agent:{home}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
)
_GROUP = "root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files{dns}\nservices: files\nprotocols: files\n"

# A bind there would replace what this module sets up, or be reached through a link that the agent made.
_RESERVED = ("/usr", "/etc", "/proc", "/dev", "/run", *(f"/{name}" for name in _SYSTEM_DIRECTORIES))


@dataclass(frozen=True, slots=True)
class View:
    """Arguments for bwrap, and the texts that are to become files (path inside -> content)."""

    arguments: list[str] = field(default_factory=list[str])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])


def view(recipe: Recipe, *, interpreter_root: Path | None, program: bytes, sized: bool) -> View:
    """Return what the sandbox of `recipe` sees.

    interpreter_root: directory of a Python that does not lie below /usr. sized: whether this bwrap can limit
    the size of a file system in memory. Raises `SandboxUnavailable` for a bind that is not allowed.
    """
    result = View()
    # Files in memory are memory, and cannot be taken back by ending a process: they must leave it some.
    scratch = str(min(recipe.limits.scratch_bytes, recipe.limits.memory_bytes // 4))
    add = result.arguments.extend
    add(_system())
    if interpreter_root is not None:
        add(["--ro-bind", str(interpreter_root), str(interpreter_root)])
    for directory in ("/proc", "/dev"):
        add([f"--{directory[1:]}", directory])
    for directory in ("/tmp", "/dev/shm"):  # noqa: S108
        add([*(["--size", scratch] if sized else []), "--perms", "1777", "--tmpfs", directory])
    add(["--dir", "/var", "--symlink", "../tmp", "/var/tmp"])  # noqa: S108
    add(["--bind", str(recipe.workspace.resolve()), recipe.workdir])
    if recipe.skills is not None:
        # The provider has seen to it that no link stands there.
        add(["--ro-bind", str(recipe.skills.resolve()), skills_path(recipe)])
    for bind in recipe.binds:
        _check_bind(bind.target, recipe.workdir)
        add(["--bind" if bind.writable else "--ro-bind", str(bind.source.resolve()), bind.target])
    result.files.update(_etc(recipe))
    result.files[PROGRAM_PATH] = program
    if recipe.egress is not None:
        add(way_out.arguments(recipe.egress))
        result.files.update(way_out.files(recipe.egress))
    if recipe.network:
        add(_resolver())
    return result


def skills_path(recipe: Recipe) -> str:
    """Return where a recipe's skills are shown."""
    return f"{recipe.workdir}/{SKILLS_FOLDER}"


def environment(recipe: Recipe, interpreter_root: Path | None) -> dict[str, str]:
    """Return the whole environment inside."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    if interpreter_root is not None:
        path += f":{interpreter_root / 'bin'}"
    own = {**base_environment(recipe, recipe.workdir), "PATH": path, "USER": "agent"}
    if recipe.egress is not None:
        own.update(way_out.variables())
    return {**own, **recipe.env}


def base_environment(recipe: Recipe, workdir: str) -> dict[str, str]:
    """Return the variables that every provider sets: where home is, language, terminal, time zone."""
    return {
        # In the workspace, so that what tools keep in the home directory survives the sandbox.
        "HOME": f"{workdir}/.corral/home",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TZ": recipe.env.get("TZ", "UTC"),
        "SHELL": "/bin/bash",
    }


def _system() -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for name in _SYSTEM_DIRECTORIES:
        host = Path("/", name)
        if host.is_symlink():
            yield from ("--symlink", os.readlink(host).lstrip("/"), str(host))
        elif host.is_dir():
            yield from ("--ro-bind", str(host), str(host))
    for path in _HOST_ETC:
        yield from ("--ro-bind-try", path, path)


def _etc(recipe: Recipe) -> Mapping[str, bytes]:
    home = base_environment(recipe, recipe.workdir)["HOME"]
    texts = {
        "/etc/passwd": _USERS.format(uid=INNER_UID, gid=INNER_GID, home=home),
        "/etc/group": _GROUP.format(gid=INNER_GID),
        "/etc/hosts": _HOSTS,
        "/etc/nsswitch.conf": _NSSWITCH.format(dns=" dns" if recipe.network else ""),
        "/etc/hostname": "sandbox\n",
    }
    return {path: text.encode("ascii") for path, text in texts.items()}


def _resolver() -> Iterator[str]:
    resolver = Path("/etc/resolv.conf")
    if resolver.exists():
        yield from ("--ro-bind", str(resolver.resolve()), str(resolver))


def _check_bind(target: str, workdir: str) -> None:
    path = PurePosixPath(target)
    if not path.is_absolute() or ".." in path.parts or path == PurePosixPath("/"):
        raise SandboxUnavailable(f"the bind target {target!r} must be an absolute path without '..'")
    for taken in (*_RESERVED, workdir):
        if path.is_relative_to(taken):
            raise SandboxUnavailable(
                f"the bind target {target!r} lies in {taken}, which the sandbox uses: take one below /mnt"
            )
