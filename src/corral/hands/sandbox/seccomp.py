"""The system call filter of a sandbox, as the classic BPF program that the kernel takes.

A deny list over what an unprivileged user in new namespaces could still do: look into other processes, load
code into the kernel, mount, make further namespaces, reach kernel interfaces with a long record of faults.
A call of a foreign architecture ends the process; there is no other way to name its numbers.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from corral.hands.sandbox.provider import SandboxUnavailable

_EPERM = 1
_ENOSYS = 38
_EPROTONOSUPPORT = 93
_EAFNOSUPPORT = 97

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000

# struct seccomp_data
_AT_NUMBER = 0
_AT_ARCHITECTURE = 4
_AT_ARGUMENTS = 16

# BPF instructions
_LOAD = 0x20
_RETURN = 0x06
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45

_X32_BIT = 0x40000000
# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACE = 0x80 | 0x20000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
# Requests that put characters into somebody's terminal: TIOCSTI, TIOCLINUX.
_TERMINAL_INJECTION = (0x5412, 0x541C)
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. AF_VSOCK, which leads out of a virtual machine, is in no namespace.
_ADDRESS_FAMILIES = (1, 2, 10, 16)
# Set-user-id and set-group-id: a file with them gives whoever runs it on the host the rights of the sandbox's
# user, who owns all workspaces.
_RISES = 0o6000
# O_CREAT, O_TMPFILE: without them a mode says nothing.
_CREATES = 0o100 | 0o20000000
_AF_NETLINK = 16
_NETLINK_ROUTE = 0  # lists interfaces and addresses; the others configure the kernel, or ask much of it

# The same number on every architecture (424 and above).
_SHARED = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "openat2": 437,
    "fchmodat2": 452,
    "open_tree_attr": 467,
}
_X86_64 = {
    "open": 2,
    "ioctl": 16,
    "socket": 41,
    "socketpair": 53,
    "clone": 56,
    "creat": 85,
    "chmod": 90,
    "fchmod": 91,
    "ptrace": 101,
    "syslog": 103,
    "mknod": 133,
    "uselib": 134,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "lookup_dcookie": 212,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "openat": 257,
    "mknodat": 259,
    "fchmodat": 268,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "lookup_dcookie": 18,
    "ioctl": 29,
    "mknodat": 33,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "fchmod": 52,
    "fchmodat": 53,
    "openat": 56,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "adjtimex": 171,
    "socket": 198,
    "socketpair": 199,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "swapon": 224,
    "swapoff": 225,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}

# Decided by an argument, not by the number alone: by the mode at this place, or by flags and the mode after.
_MODES = {"creat": 1, "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mknod": 1, "mknodat": 2}
_OPENS = {"open": 1, "openat": 2}
_BY_ARGUMENT = ("ioctl", "socket", "socketpair", "clone", "unshare", *_MODES, *_OPENS)
# "Not there" instead of "not allowed": programs then fall back (clone3 and openat2 hide theirs from filters).
_ABSENT = ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A machine type: its audit number in the kernel and its system call numbers."""

    audit: int
    numbers: dict[str, int]


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, _X86_64 | _SHARED),
    "aarch64": Architecture(0xC00000B7, _AARCH64 | _SHARED),
}


def denied_names(machine: str) -> frozenset[str]:
    """Return the system calls of `machine` (see `ARCHITECTURES`) that are refused whatever the arguments."""
    return frozenset(ARCHITECTURES[machine].numbers).difference(_BY_ARGUMENT)


def sandbox_filter(machine: str | None = None) -> bytes:
    """Return the filter for `machine`, by default this one.

    Raises `SandboxUnavailable` for a machine whose system call numbers are not known.
    """
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise SandboxUnavailable(
            f"no system call filter is known for {machine}, only for {known}: run the worker on one of those"
        )
    return b"".join(_program(machine, ARCHITECTURES[machine]))


def _program(machine: str, architecture: Architecture) -> Iterator[bytes]:
    numbers = architecture.numbers
    yield _instruction(_LOAD, _AT_ARCHITECTURE)
    yield from _unless_equal(architecture.audit, [_instruction(_RETURN, _KILL_PROCESS)])
    yield _instruction(_LOAD, _AT_NUMBER)
    if machine == "x86_64":
        yield from _when(_AT_LEAST, _X32_BIT, [_refuse(_ENOSYS)])
    for name, number in numbers.items():
        if name not in _BY_ARGUMENT:
            yield from _when(_EQUAL, number, [_refuse(_ENOSYS if name in _ABSENT else _EPERM)])
    for name in ("clone", "unshare"):
        yield from _when(_EQUAL, numbers[name], [*_argument(0, _ANY_BIT, _NEW_NAMESPACE, _EPERM), _allow()])
    for name, place in _MODES.items():
        if name in numbers:
            yield from _when(_EQUAL, numbers[name], [*_argument(place, _ANY_BIT, _RISES, _EPERM), _allow()])
    for name, place in _OPENS.items():
        if name in numbers:
            mode = [*_argument(place + 1, _ANY_BIT, _RISES, _EPERM), _allow()]
            flags = [_instruction(_LOAD, _AT_ARGUMENTS + 8 * place), *_when(_ANY_BIT, _CREATES, mode)]
            yield from _when(_EQUAL, numbers[name], [*flags, _allow()])
    injection = [step for request in _TERMINAL_INJECTION for step in _argument(1, _EQUAL, request, _EPERM)]
    yield from _when(_EQUAL, numbers["ioctl"], [*injection, _allow()])
    protocol = [
        _instruction(_LOAD, _AT_ARGUMENTS + 8 * 2),
        *_when(_EQUAL, _NETLINK_ROUTE, [_allow()]),
        _refuse(_EPROTONOSUPPORT),
    ]
    families = [
        step
        for family in _ADDRESS_FAMILIES
        for step in _when(_EQUAL, family, protocol if family == _AF_NETLINK else [_allow()])
    ]
    load_family = _instruction(_LOAD, _AT_ARGUMENTS)
    for name in ("socket", "socketpair"):
        yield from _when(_EQUAL, numbers[name], [load_family, *families, _refuse(_EAFNOSUPPORT)])
    yield _allow()


def _instruction(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _refuse(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _allow() -> bytes:
    return _instruction(_RETURN, _ALLOW)


def _when(test: int, value: int, steps: list[bytes]) -> Iterator[bytes]:
    """Run `steps` if the test of the loaded word holds. They must end in a return."""
    yield _instruction(test, value, 0, len(steps))
    yield from steps


def _unless_equal(value: int, steps: list[bytes]) -> Iterator[bytes]:
    yield _instruction(_EQUAL, value, len(steps), 0)
    yield from steps


def _argument(index: int, test: int, value: int, error: int) -> list[bytes]:
    """Refuse with `error` if the test of the lower half of an argument holds. Little-endian machines."""
    return [_instruction(_LOAD, _AT_ARGUMENTS + 8 * index), *_when(test, value, [_refuse(error)])]
