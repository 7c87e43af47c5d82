"""A hostile agent in a bubblewrap sandbox. Each test tries something and must get nowhere."""

import asyncio
import json
import os
import platform
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from corral.hands.sandbox.access import Identity, find_interpreter
from corral.hands.sandbox.bubblewrap import BubblewrapProvider
from corral.hands.sandbox.provider import MIB, Limits, Recipe, SandboxLost
from corral.hands.sandbox.seccomp import ARCHITECTURES, denied_names
from tests.unit.hands.sandbox.given import hands
from tests.unit.hands.sandbox.watched import outer_uids, running, seconds, until_running, watching

SECRET = "sk-secret-of-the-worker"


async def test_there_is_no_network(open_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        script = (
            "import socket\n"
            f"for where in [('127.0.0.1', {port}), ('10.0.0.1', 80), ('169.254.169.254', 80)]:\n"
            "    try: socket.create_connection(where, 2); print('reached', where)\n"
            "    except OSError as error: print(type(error).__name__, error.errno)\n"
        )
        async with hands(open_folder) as ours:
            await ours.call("write", file_path="try.py", content=script)
            tried = (await ours.bash("python3 try.py")).text
            interfaces = (await ours.bash("tail -n +3 /proc/net/dev | cut -d: -f1")).text.split()
    assert "reached" not in tried
    assert tried.splitlines()[0].startswith("ConnectionRefusedError")
    assert interfaces == ["lo"]


async def test_names_are_not_resolved(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        assert (await ours.bash("python3 -c 'import socket; socket.gethostbyname(\"example.com\")'")).is_error


async def test_an_abstract_socket_of_the_host_is_not_there(open_folder: Path) -> None:
    name = f"corral-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')"
        async with hands(open_folder) as ours:
            assert "ConnectionRefusedError" in (await ours.bash(f'python3 -c "{connect}"')).text


async def test_the_host_of_a_virtual_machine_cannot_be_called(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        made = await ours.bash("python3 -c 'import socket; socket.socket(40, socket.SOCK_STREAM)'")
    assert "Address family not supported" in made.text


async def test_no_file_of_the_host_is_there(open_folder: Path) -> None:
    other = open_folder / "other-workspace"
    other.mkdir(mode=0o755)
    (other / "file").write_text(SECRET)
    paths = [
        "/root",
        "/etc/shadow",
        "/home",
        "/work",
        "/var/lib",
        "/var/run",
        "/sys",
        "/boot",
        "/mnt",
        "/opt",
    ]
    paths += [
        "/run/docker.sock",
        "/etc/ssl/private",
        str(other),
        str(open_folder),
        str(Path(__file__).parent),
    ]
    python = find_interpreter(Identity.for_sandboxes())[1]
    shown = set(python.parents) if python is not None else set[Path]()
    paths = [path for path in paths if Path(path) not in shown]
    async with hands(open_folder) as ours:
        seen = await ours.bash(f"for path in {' '.join(paths)}; do test -e $path && echo $path; done; true")
        above = await ours.bash("ls /workspace/.. /proc/1/root /proc/self/root /proc/$PPID/cwd/.. 2>&1")
        top = (await ours.bash("ls /")).text.split()
    assert seen.text == "(no output)"
    assert SECRET not in above.text
    system = {
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "proc",
        "run",
        "sbin",
        "tmp",
        "usr",
        "var",
    }
    where_python_is = set(Path(sys.base_prefix).resolve().parts[1:2])
    assert set(top) <= system | {"workspace"} | where_python_is


async def test_a_link_to_the_host_leads_nowhere(open_folder: Path) -> None:
    hidden = open_folder / "hidden"
    hidden.write_text(SECRET)
    hidden.chmod(0o644)
    async with hands(open_folder) as ours:
        await ours.bash(f"ln -s {hidden} a; ln -s /proc/1/root{hidden} b; ln -s /proc/1/cwd c")
        for path in ("a", "b", f"c{hidden}"):
            assert SECRET not in (await ours.call("read", file_path=path)).text
            assert SECRET not in (await ours.bash(f"cat {path}")).text


async def test_links_left_in_the_workspace_change_nothing_outside_at_the_next_start(
    open_folder: Path,
) -> None:
    target = open_folder / "target"
    target.mkdir()
    (target / "mine").write_text("mine")
    async with hands(open_folder) as ours:
        await ours.bash(f"rm -rf .corral; ln -s {target} .corral; ln -s {target} link")
    async with hands(open_folder) as ours:
        assert (await ours.bash("echo $HOME")).text == "/tmp"
        assert (await ours.bash("seq 1 100000")).is_error is False
    assert [entry.name for entry in target.iterdir()] == ["mine"]
    assert (target / "mine").stat().st_uid == os.geteuid()


async def test_the_system_cannot_be_changed(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        for path in (
            "/usr/bin/evil",
            "/etc/passwd",
            "/evil",
            "/run/corral/inside.pyz",
            "/lib/evil",
            "/var/evil",
        ):
            assert (await ours.bash(f"echo evil > {path}")).is_error, path


async def test_no_process_of_the_host_is_seen_or_reached(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        numbers = (await ours.bash("ls /proc | grep -E '^[0-9]+$'")).text.split()
        assert len(numbers) <= 6
        commands = (await ours.bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).text
        assert "pytest" not in commands
        assert str(open_folder) not in commands
        if str(os.getpid()) not in numbers:
            assert (await ours.bash(f"kill -0 {os.getpid()}")).is_error


async def test_no_secret_of_the_worker_is_in_the_environment(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_ENVIRONMENT_KEY",
        "CORRAL_WORKER__POOL_KEY",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.setenv(name, SECRET)
    async with hands(open_folder) as ours:
        found = await ours.bash(
            "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"
        )
        names = {line.split("=")[0] for line in (await ours.bash("env")).text.splitlines()}
    assert SECRET not in found.text
    assert names <= {
        "HOME",
        "LANG",
        "TERM",
        "TZ",
        "SHELL",
        "PATH",
        "USER",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
        "PS1",
        "PS2",
    }


async def test_no_descriptor_of_the_worker_is_open(open_folder: Path) -> None:
    held = os.open(open_folder, os.O_RDONLY)
    os.set_inheritable(held, True)
    try:
        async with hands(open_folder) as ours:
            mine = (await ours.bash("ls -l /proc/self/fd | sed 's/.*-> //'")).text
            all_of_them = (await ours.bash("ls -l /proc/[0-9]*/fd 2>/dev/null")).text
    finally:
        os.close(held)
    assert str(open_folder) not in mine + all_of_them
    assert "memfd" not in all_of_them


async def test_dangerous_system_calls_are_refused(open_folder: Path) -> None:
    numbers = ARCHITECTURES[platform.machine()].numbers
    calls = {name: numbers[name] for name in denied_names(platform.machine())}
    script = (
        "import ctypes, json\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"calls = json.loads({json.dumps(calls)!r})\n"
        "print(json.dumps({name: (libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno())\n"
        "                  for name, number in calls.items()}))\n"
    )
    async with hands(open_folder) as ours:
        await ours.call("write", file_path="try.py", content=script)
        results = json.loads((await ours.bash("python3 try.py")).text)
    assert {name for name, (value, error) in results.items() if value != -1 or error not in (1, 38)} == set()


@pytest.mark.parametrize(
    "command",
    [
        "unshare -U true",
        "unshare -r true",
        "unshare -n true",
        "mount -t tmpfs none /tmp",
        "mount --bind / /tmp",
        "umount /proc",
        "chroot /tmp true",
        "mknod device b 8 0",
        "nsenter -t 1 -m true",
        "su -c true",
        "dmesg",
        "hostname other",
        "date -s 2001-01-01",
        "echo 1 > /proc/sys/kernel/panic",
        "echo b > /proc/sysrq-trigger",
    ],
)
async def test_an_administrators_command_fails(command: str, open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        assert (await ours.bash(f"{command} </dev/null")).is_error


async def test_there_is_no_capability_and_no_way_to_gain_one(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        status = (await ours.bash("cat /proc/self/status")).text
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        identity = (await ours.bash("id -u; id -g; cat /proc/self/uid_map")).text.split()
    assert {int(fields[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert identity[:2] == ["1000", "1000"]
    assert identity[2] == "1000"
    assert identity[4] == "1"


async def test_outside_it_is_never_root(open_folder: Path) -> None:
    expected = Identity.for_sandboxes().uid
    assert expected != 0
    async with hands(open_folder) as ours:
        await ours.bash(f"sleep {seconds(81234)} & echo > owned")
        everything = await until_running(f"sleep\0{seconds(81234)}") + await until_running("inside.pyz", 3)
        assert everything
        assert {uid for pid in everything for uid in outer_uids(pid)} == {expected}
        assert (ours.workspace / "owned").stat().st_uid == expected


async def test_a_fork_bomb_is_bounded_and_over_with_its_call(open_folder: Path) -> None:
    async with hands(open_folder, limits=Limits(processes=64)) as ours:
        explode = "b() { sleep TIME & b & b; }; b 2>/dev/null".replace("TIME", seconds(82345))
        bomb = asyncio.create_task(ours.bash(explode, timeout_ms=1500))
        most = 0
        while not bomb.done():
            most = max(most, len(await asyncio.to_thread(running, f"sleep\0{seconds(82345)}")))
        assert (await bomb).is_error
        assert 0 < most <= 64
        assert running(f"sleep\0{seconds(82345)}") == []
        assert (await ours.bash("echo usable")).text == "usable"


@pytest.mark.parametrize(
    ("command", "limits"),
    [
        ("python3 -c 'bytearray(512 << 20)'", Limits(memory_bytes=256 * MIB)),
        ("head -c 3000000 /dev/zero > file", Limits(file_bytes=MIB)),
        ("head -c 30000000 /dev/zero > /tmp/file", Limits(scratch_bytes=16 * MIB)),
        ("head -c 30000000 /dev/zero > /dev/shm/file", Limits(scratch_bytes=16 * MIB)),
        ("python3 -c 'files = [open(\"/\") for _ in range(500)]'", Limits(open_files=256)),
        ("timeout 5 sh -c 'while :; do :; done'; test $? = 124", Limits(cpu_seconds=1)),
        ("ulimit -n 5000", Limits(open_files=256)),
    ],
)
async def test_a_limit_holds(command: str, limits: Limits, open_folder: Path) -> None:
    async with hands(open_folder, limits=limits) as ours:
        assert (await ours.bash(command)).is_error
        assert (await ours.bash("echo usable")).text == "usable"


async def test_words_put_into_the_programs_mouth_cost_the_sandbox_and_no_more(open_folder: Path) -> None:
    forge = "for fd in /proc/$PPID/fd/*; do [ -p $fd ] && echo '{\"id\": nonsense' > $fd; done"
    async with hands(open_folder) as ours:
        try:
            await ours.bash(forge)
        except SandboxLost:
            assert not ours.sandbox.alive
    async with hands(open_folder) as again:
        assert (await again.bash("echo usable")).text == "usable"


async def test_a_program_named_like_a_tool_is_not_run_in_its_place(open_folder: Path) -> None:
    async with hands(open_folder, env={"PATH": "/workspace/bin:/usr/bin:/bin"}) as ours:
        evil = "#!/bin/sh\necho evil > /workspace/ran\n"
        for name in ("rg", "python3", "bash"):
            await ours.call("write", file_path=f"bin/{name}", content=evil)
        await ours.call("write", file_path="json.py", content="open('/workspace/ran', 'w')")
        await ours.bash("chmod +x bin/*")
        assert (await ours.call("grep", pattern="^#!", path="bin/rg")).text == "/workspace/bin/rg:1:#!/bin/sh"
        await ours.call("bash", restart=True)
        assert not (ours.workspace / "ran").exists()


async def test_two_sandboxes_do_not_see_each_other(open_folder: Path) -> None:
    provider = BubblewrapProvider()
    recipe = Recipe("a", open_folder / "a")
    try:
        first = await provider.provision(recipe)
        second = await provider.provision(replace(recipe, session_id="b", workspace=open_folder / "b"))
        await first.execute(
            "bash", {"command": f"echo {SECRET} | tee file /tmp/file /dev/shm/file; sleep {seconds(83456)} &"}
        )
        look = "cat /tmp/* /dev/shm/* /workspace/* /proc/[0-9]*/cmdline 2>/dev/null; pkill sleep; true"
        seen = await second.execute("bash", {"command": look})
        assert SECRET not in seen.content[0]["text"]
        assert f"{seconds(83456)}" not in seen.content[0]["text"]
        assert await until_running(f"sleep\0{seconds(83456)}")
    finally:
        await provider.close()


WORKER = """
import asyncio, sys
from pathlib import Path
from corral.hands.sandbox.provider import Recipe
from corral.hands.sandbox.bubblewrap import BubblewrapProvider

async def work():
    sandbox = await BubblewrapProvider().provision(Recipe("s", Path(sys.argv[1])))
    background = "setsid sleep TIME & (setsid sleep TIME &); echo".replace("TIME", sys.argv[2])
    await sandbox.execute("bash", {"command": background})
    print("begun", flush=True)
    await sandbox.execute("bash", {"command": "trap '' HUP TERM INT; sleep " + sys.argv[2]})

asyncio.run(work())
"""


WAITING_WORKER = """
import asyncio
from corral.hands.sandbox.bubblewrap import BubblewrapProvider

async def work():
    await BubblewrapProvider(waiting=1).probe()
    print("begun", flush=True)
    await asyncio.sleep(600)

asyncio.run(work())
"""


async def test_what_waits_to_become_a_sandbox_ends_with_its_worker() -> None:
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WAITING_WORKER, stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    while (line := await worker.stdout.readline()) != b"begun\n":
        assert line, "the worker ended too early"
    waiting = await until_running("inside.pyz")
    assert {uid for pid in waiting for uid in outer_uids(pid)} == {Identity.for_sandboxes().uid}
    with watching(waiting) as left:
        worker.kill()
        await worker.wait()
        assert await asyncio.to_thread(left.have_ended, 10)


async def test_a_worker_killed_at_once_leaves_no_process(open_folder: Path) -> None:
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WORKER, str(open_folder / "workspace"), seconds(84567)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdout is not None
    while (line := await worker.stdout.readline()) != b"begun\n":
        assert line, "the worker ended too early"
    sleeping = await until_running(f"sleep\0{seconds(84567)}", 3)
    with watching(sleeping + await until_running("inside.pyz", 3)) as left:
        worker.kill()
        await worker.wait()
        assert await asyncio.to_thread(left.have_ended, 10)
