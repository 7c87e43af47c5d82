"""Workspaces on disk: made, kept, told apart and removed."""

import os
from pathlib import Path

from corral.hands.worker.workspaces import Owner, Workspaces

OURS = Owner("http://one", "env_1")


async def opened(folder: Path, owner: Owner = OURS) -> Workspaces:
    workspaces = Workspaces(folder / "workspaces", owner)
    await workspaces.open()
    return workspaces


async def test_a_workspace_is_removed_with_directories_that_the_agent_has_closed(open_folder: Path) -> None:
    workspaces = await opened(open_folder)
    workspace = await workspaces.take("sesn_1")
    (workspace / "deep" / "er").mkdir(parents=True)
    (workspace / "deep" / "er" / "file").write_text("x")
    (workspace / "link").symlink_to("/")
    (workspace / "deep").chmod(0)
    await workspaces.remove("sesn_1")
    assert sorted(os.listdir(open_folder / "workspaces")) == [".begun", ".owners", ".shares"]
    assert await workspaces.kept() == []


async def test_a_call_is_begun_once_until_its_session_is_gone(open_folder: Path) -> None:
    first, second = await opened(open_folder), await opened(open_folder)
    assert await first.begin_call("sesn_1", "../sevt_1")
    assert not await second.begin_call("sesn_1", "../sevt_1")
    assert await second.begin_call("sesn_1", "sevt_2")
    await first.remove("sesn_1")
    assert await first.begin_call("sesn_1", "../sevt_1")


async def test_removing_what_is_not_there_is_no_failure(open_folder: Path) -> None:
    await (await opened(open_folder)).remove("sesn_1")


async def test_a_removal_that_was_cut_short_is_finished_at_the_next_start(open_folder: Path) -> None:
    await opened(open_folder)
    left = open_folder / "workspaces" / ".gone-1"
    left.mkdir()
    (left / "file").write_text("x")
    await opened(open_folder)
    assert not left.exists()


async def test_workspaces_of_another_server_or_environment_are_not_ours_to_remove(open_folder: Path) -> None:
    await (await opened(open_folder)).take("sesn_1")
    for other in (Owner("http://two", "env_1"), Owner("http://one", "env_2"), Owner("http://one", None)):
        assert await (await opened(open_folder, other)).kept() == []
    [(session_id, unused)] = await (await opened(open_folder)).kept()
    assert session_id == "sesn_1"
    assert unused < 60


async def test_others_can_pass_the_directory_but_not_look_around(open_folder: Path) -> None:
    await opened(open_folder)
    assert (open_folder / "workspaces").stat().st_mode & 0o777 == 0o711
    assert (open_folder / "workspaces" / ".owners").stat().st_mode & 0o777 == 0o700
