"""Starting and ending sandboxes, and what is said when that cannot be done."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from corral.hands.sandbox import access
from corral.hands.sandbox.bubblewrap import BubblewrapProvider
from corral.hands.sandbox.process import ProcessProvider
from corral.hands.sandbox.provider import Bind, Limits, Recipe, SandboxLost, SandboxUnavailable
from corral.hands.sandbox.select import PROVIDER_NAMES, provider_named
from tests.unit.hands.sandbox.given import hands, said
from tests.unit.hands.sandbox.watched import is_ours, running, seconds, until_running, watching


def test_every_provider_is_there_by_name_and_another_name_says_which_there_are() -> None:
    assert {type(provider_named(name)) for name in PROVIDER_NAMES} == {BubblewrapProvider, ProcessProvider}
    with pytest.raises(
        SandboxUnavailable, match="unknown sandbox provider 'docker': choose one of bubblewrap, process"
    ):
        provider_named("docker")


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
async def test_stopping_kills_everything_and_keeps_the_workspace(provider: str, open_folder: Path) -> None:
    async with hands(open_folder, provider) as ours:
        await ours.bash(
            f"echo kept > file; setsid sleep {seconds(71234)} & (setsid sleep {seconds(71234)} &); echo"
        )
        with watching(await until_running(f"sleep\0{seconds(71234)}", 2)) as left:
            await ours.sandbox.stop()
            assert left.have_ended()
        assert not ours.sandbox.alive
        with pytest.raises(SandboxLost):
            await ours.bash("echo")
        await ours.sandbox.stop()
    async with hands(open_folder, provider) as again:
        assert (await again.bash("cat file")).text == "kept"


def waiting_ones() -> list[int]:
    """Our processes that wait to be told whose sandbox they are."""
    return [pid for pid in running("inside.pyz") if is_ours(pid) and not has_children(pid)]


async def the_waiting_one() -> int:
    """Our only process that waits, once it has got so far."""
    while len(found := await asyncio.to_thread(waiting_ones)) != 1:
        pass
    return found[0]


@asynccontextmanager
async def ahead(**options: Any) -> AsyncGenerator[BubblewrapProvider]:
    """A provider that keeps one sandbox waiting; closed at the end."""
    provider = BubblewrapProvider(waiting=1, **options)
    try:
        await provider.probe()
        yield provider
    finally:
        await provider.close()


def has_children(pid: int) -> bool:
    """Whether a process has started another; bwrap does once it knows what to show."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_bytes() != b""


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
async def test_the_first_sandboxes_of_a_worker_may_start_all_at_once(
    provider: str, open_folder: Path
) -> None:
    makes = provider_named(provider)
    recipes = [Recipe(f"sesn_{n}", open_folder / f"workspace-{n}") for n in range(4)]
    try:
        sandboxes = await asyncio.gather(*map(makes.provision, recipes))
        outputs = await asyncio.gather(*(one.execute("bash", {"command": "echo up"}) for one in sandboxes))
    finally:
        await makes.close()
    assert [said(output).text for output in outputs] == ["up"] * 4


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
async def test_stopping_ends_the_calls_that_run(provider: str, open_folder: Path) -> None:
    async with hands(open_folder, provider) as ours:
        call = asyncio.create_task(ours.bash(f"sleep {seconds(72345)}"))
        await until_running(f"sleep\0{seconds(72345)}")
        await ours.sandbox.stop()
        with pytest.raises(SandboxLost):
            await call


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
async def test_a_sandbox_killed_from_inside_is_lost_and_the_next_one_has_its_files(
    provider: str, open_folder: Path
) -> None:
    async with hands(open_folder, provider) as ours:
        await ours.call("write", file_path="a.txt", content="kept")
        with pytest.raises(SandboxLost):
            await ours.bash("kill -9 $PPID; sleep 5")
        assert not ours.sandbox.alive
    async with hands(open_folder, provider) as again:
        assert (await again.call("read", file_path="a.txt")).text == "kept"


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
async def test_a_cancelled_start_leaves_nothing(provider: str, open_folder: Path) -> None:
    makes = provider_named(provider)
    start = asyncio.create_task(makes.provision(Recipe("test", open_folder / "workspace")))
    with watching(await until_running("inside.pyz")) as left:
        start.cancel()
        try:
            await start
        except asyncio.CancelledError:
            assert left.have_ended()
        await makes.close()
        assert left.have_ended()


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
async def test_the_environment_is_the_recipes_and_nothing_of_the_workers(
    provider: str, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret-of-the-worker")
    monkeypatch.setenv("SOMETHING_ELSE", "secret-of-the-worker")
    async with hands(open_folder, provider, env={"GIVEN": "by the recipe"}) as ours:
        variables = (await ours.bash("env; cat /proc/$PPID/environ")).text
        assert "GIVEN=by the recipe" in variables
        assert "secret-of-the-worker" not in variables


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
async def test_a_nul_in_the_recipe_is_refused(provider: str, open_folder: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="holds a NUL"):
        async with hands(open_folder, provider, env={"A": "x\0--bind\0/\0/host"}):
            pass


async def test_the_environment_of_a_recipe_never_reaches_a_process_outside(open_folder: Path) -> None:
    async with hands(open_folder, env={"LD_DEBUG": "all", "MARK": "only-inside"}):
        outside = min(await until_running("inside.pyz"))
        assert Path(f"/proc/{outside}/environ").read_bytes() == b""


async def test_a_worker_that_runs_as_root_gives_the_workspace_to_the_sandboxes_user(
    open_folder: Path,
) -> None:
    workspace = open_folder / "workspace"
    (workspace / "repo").mkdir(parents=True)
    (workspace / "repo" / "file").write_text("given\n")
    (workspace / "link").symlink_to("/etc/hostname")
    before = os.stat("/etc/hostname")
    async with hands(open_folder) as ours:
        assert (await ours.bash("echo more >> repo/file; cat repo/file")).text == "given\nmore"
        assert (await ours.bash("stat -c %u repo/file")).text == "1000"
    owner = access.Identity.for_sandboxes().uid
    assert owner != 0
    assert (workspace / "repo" / "file").stat().st_uid == owner
    assert os.stat("/etc/hostname").st_uid == before.st_uid


async def test_a_workspace_that_the_sandboxes_user_cannot_enter_is_refused_with_what_to_do(
    open_folder: Path,
) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    sandboxes_user = access.Identity(access.SANDBOX_UID, access.SANDBOX_GID, changed=True)
    assert access.closed_door(sandboxes_user, closed / "workspace") == closed
    with pytest.raises(SandboxUnavailable, match=r"Put workspaces .* elsewhere"):
        access.hand_over(closed / "workspace", sandboxes_user)


async def test_a_bubblewrap_that_cannot_isolate_is_refused_with_what_to_do(open_folder: Path) -> None:
    broken = open_folder / "bwrap"
    broken.write_text(
        "#!/bin/sh\n[ $1 = --help ] && echo --ro-bind-data && exit\n"
        "echo 'setting up uid map: Permission denied' >&2; exit 1\n"
    )
    broken.chmod(0o755)
    provider = BubblewrapProvider(broken)
    with pytest.raises(SandboxUnavailable, match=r"uid map: Permission denied.*sysctl -w kernel.apparmor"):
        await provider.probe()
    with pytest.raises(SandboxUnavailable):
        await provider.provision(Recipe("test", open_folder / "workspace"))
    await provider.close()


async def test_a_missing_bubblewrap_is_refused(open_folder: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="does not exist or user"):
        await BubblewrapProvider(open_folder / "none").probe()


async def test_a_bind_that_does_not_exist_is_refused(open_folder: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="cannot be shown in the sandbox"):
        async with hands(open_folder, binds=(Bind(open_folder / "none", "/mnt/x"),)):
            pass


async def test_a_probed_provider_starts_many_sandboxes_and_closes_all(open_folder: Path) -> None:
    provider = BubblewrapProvider()
    await provider.probe()
    recipes = [Recipe(f"s{n}", open_folder / f"w{n}") for n in range(4)]
    sandboxes = await asyncio.gather(*(provider.provision(recipe) for recipe in recipes))
    outputs = await asyncio.gather(
        *(
            sandbox.execute("bash", {"command": f"echo {n} > n; ls; cat n"})
            for n, sandbox in enumerate(sandboxes)
        )
    )
    assert [said(output).text for output in outputs] == [f"n\n{n}" for n in range(4)]
    await provider.close()
    assert not any(sandbox.alive for sandbox in sandboxes)


async def test_the_process_provider_warns_once(open_folder: Path) -> None:
    provider = ProcessProvider()
    with structlog.testing.capture_logs() as logs:
        for name in ("a", "b"):
            await provider.provision(Recipe(name, open_folder / name))
        await provider.close()
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["sandbox.no_isolation"]


async def test_a_sandbox_begun_ahead_of_time_is_taken_and_followed_by_another(open_folder: Path) -> None:
    async with ahead() as provider:
        first = await the_waiting_one()
        sandbox = await provider.provision(Recipe("a", open_folder / "a"))
        assert said(await sandbox.execute("bash", {"command": "pwd"})).text == "/workspace"
        assert first in await until_running("inside.pyz"), "that one became the sandbox"
        second = await the_waiting_one()
        assert second != first
        with watching([first, second]) as left:
            await provider.close()
            assert left.have_ended()


async def test_a_waiting_sandbox_that_was_killed_is_not_taken(open_folder: Path) -> None:
    async with ahead() as provider:
        first = await the_waiting_one()
        with watching([first]) as left:
            os.kill(first, signal.SIGKILL)
            assert left.have_ended(10)
        sandbox = await provider.provision(Recipe("a", open_folder / "a"))
        assert said(await sandbox.execute("bash", {"command": "pwd"})).text == "/workspace"


async def test_a_sandbox_with_other_limits_does_not_take_the_waiting_one(open_folder: Path) -> None:
    async with ahead(limits=Limits(processes=99)) as provider:
        first = await the_waiting_one()
        await provider.provision(Recipe("a", open_folder / "a"))
        assert first in waiting_ones()
    assert not waiting_ones()


async def test_a_recipe_of_more_variables_than_a_pipe_holds_is_told_whole(open_folder: Path) -> None:
    many = {f"V{n}": "x" * 1000 for n in range(120)}
    async with hands(open_folder, env=many) as ours:
        assert (await ours.bash("env | grep -c ^V; echo ${#V119}")).text == "120\n1000"
