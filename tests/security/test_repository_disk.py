"""A repository that is larger than the disk: its clone is stopped, and sessions that are at work go on."""

import asyncio
from pathlib import Path

import pytest

from corral.hands.sandbox.bubblewrap import BubblewrapProvider
from corral.hands.sandbox.provider import MIB, Bind, DiskFull, Recipe
from corral.hands.worker.disk import DiskLimits
from corral.hands.worker.sandboxes import Sandboxes
from corral.hands.worker.workspaces import Owner, Workspaces
from tests.security.test_disk import small_disk as small_disk
from tests.unit.hands.sandbox.given import said


async def test_a_clone_is_stopped_before_it_has_filled_the_disk(small_disk: Path) -> None:
    """The attacker's repository has no end. The sandbox that fetches it is stopped while there is room left;
    the session that is at work meanwhile notices nothing, and no other clone begins until there is room."""
    workspaces = Workspaces(small_disk / "w", Owner("http://server", None))
    await workspaces.open()
    provider = BubblewrapProvider()
    limits = DiskLimits(free_bytes=100 * MIB, watch_seconds=0.02)
    sandboxes = Sandboxes(provider, workspaces, idle_seconds=600, most=4, shows_files=True, disk=limits)
    copy, scratch = small_disk / "w" / "copy", small_disk / "w" / "scratch"
    copy.mkdir(mode=0o700)
    recipe = Recipe(session_id="greedy", workspace=scratch, binds=(Bind(copy, "/mnt/copy", writable=True),))
    watching = asyncio.create_task(sandboxes.watch_disk())
    at_work = asyncio.create_task(
        sandboxes.execute("other", "bash", {"command": "until [ -e go-on ]; do sleep 0.05; done; echo mine"})
    )
    try:
        fetch = {"command": "head -c 180000000 /dev/zero > /mnt/copy/pack; sleep 600", "timeout_ms": 600_000}
        with pytest.raises(DiskFull, match="almost full"):
            async with sandboxes.apart(recipe) as sandbox:
                await sandbox.execute("bash", fetch)
        with pytest.raises(DiskFull, match="was not run"):
            async with sandboxes.apart(recipe):
                pytest.fail("there is no room for another one")
        (small_disk / "w" / "other" / "go-on").touch()
        assert said(await at_work).text == "mine"
        (copy / "pack").unlink()
        async with sandboxes.apart(recipe) as sandbox:
            assert said(await sandbox.execute("bash", {"command": "echo again"})).text == "again"
    finally:
        watching.cancel()
        at_work.cancel()
        await asyncio.gather(watching, at_work, return_exceptions=True)
        await provider.close()
