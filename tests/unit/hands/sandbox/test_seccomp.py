"""The system call filter, run by a small machine for its instructions."""

import struct
from dataclasses import dataclass

import pytest

from corral.hands.sandbox.provider import SandboxUnavailable
from corral.hands.sandbox.seccomp import ARCHITECTURES, denied_names, sandbox_filter

ALLOW = 0x7FFF0000
KILL = 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = 0x50001, 0x50026, 0x50061

# (machine, read, write, clone, unshare, ioctl, socket) by number.
ORDINARY = {
    "x86_64": {"read": 0, "write": 1, "execve": 59},
    "aarch64": {"read": 63, "write": 64, "execve": 221},
}
SIGCHLD, NEW_USER, THREAD = 17, 0x10000000, 0x3D0F00


@dataclass(frozen=True)
class Kernel:
    """Decides as the kernel would with the filter of `machine`."""

    machine: str

    def decides(self, call: str | int, *arguments: int, audit: int | None = None) -> int:
        architecture = ARCHITECTURES[self.machine]
        number = call if isinstance(call, int) else {**architecture.numbers, **ORDINARY[self.machine]}[call]
        words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
        data = struct.pack("=IIQ6Q", number, architecture.audit if audit is None else audit, 0, *words)
        return _run(sandbox_filter(self.machine), data)


def _run(program: bytes, data: bytes) -> int:
    steps = list(struct.iter_unpack("=HBBI", program))
    at = accumulator = 0
    while True:
        code, when_true, when_false, value = steps[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x06:
                return int(value)
            case 0x15:
                at += when_true if accumulator == value else when_false
            case 0x35:
                at += when_true if accumulator >= value else when_false
            case 0x45:
                at += when_true if accumulator & value else when_false
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.fixture(params=sorted(ARCHITECTURES))
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return Kernel(str(request.param))


def test_what_looks_into_others_loads_code_or_mounts_is_refused(kernel: Kernel) -> None:
    for name in denied_names(kernel.machine):
        assert kernel.decides(name) in (EPERM, ENOSYS), name
    required = {
        "ptrace",
        "process_vm_readv",
        "keyctl",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "mount",
        "setns",
    }
    required |= {
        "pivot_root",
        "kexec_load",
        "finit_module",
        "reboot",
        "swapon",
        "open_by_handle_at",
        "io_uring_setup",
    }
    assert required <= denied_names(kernel.machine)


def test_ordinary_calls_are_allowed(kernel: Kernel) -> None:
    assert {kernel.decides(name) for name in ORDINARY[kernel.machine]} == {ALLOW}


def test_a_call_of_another_architecture_ends_the_process(kernel: Kernel) -> None:
    assert kernel.decides("read", audit=0x40000003) == KILL


def test_the_x32_numbers_are_absent() -> None:
    assert Kernel("x86_64").decides(0x40000000) == ENOSYS


def test_processes_and_threads_can_be_made_but_no_namespace(kernel: Kernel) -> None:
    assert kernel.decides("clone", SIGCHLD) == ALLOW
    assert kernel.decides("clone", THREAD) == ALLOW
    assert kernel.decides("clone", NEW_USER | SIGCHLD) == EPERM
    assert kernel.decides("unshare", NEW_USER) == EPERM
    assert kernel.decides("clone3") == ENOSYS


def test_only_local_and_internet_sockets_can_be_made(kernel: Kernel) -> None:
    assert [kernel.decides("socket", family) for family in (1, 2, 10, 16)] == [ALLOW] * 4
    assert [kernel.decides("socket", family) for family in (17, 38, 40)] == [EAFNOSUPPORT] * 3


def test_nothing_can_be_typed_into_a_terminal(kernel: Kernel) -> None:
    assert kernel.decides("ioctl", 0, 0x5412) == EPERM
    assert kernel.decides("ioctl", 0, 0x541C) == EPERM
    assert kernel.decides("ioctl", 0, 0x5401) == ALLOW


def test_a_machine_without_known_numbers_has_no_sandbox() -> None:
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        sandbox_filter("riscv64")
