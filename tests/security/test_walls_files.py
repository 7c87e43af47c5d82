"""An agent sets traps for the file tools, and looks for files that are not its own. It gets nothing."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from corral.hands.sandbox.inside.arguments import Arguments
from corral.hands.sandbox.inside.failure import ToolFailure
from corral.hands.sandbox.inside.files import edit, read, write
from corral.hands.sandbox.inside.paths import Roots
from corral.hands.sandbox.provider import Bind, Limits
from corral.hands.worker.trees import empty_folder, remove_tree
from tests.security.attempts import got_nothing, marker, try_it
from tests.unit.hands.sandbox.given import Hands, hands

SECRET = "the-host's-secret"


async def answers(ours: Hands, tool: str, **input: object) -> str:
    """What a tool says; it must say something soon, whatever stands in its way."""
    async with asyncio.timeout(20):
        return (await ours.call(tool, **input)).text


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "loop"])
@pytest.mark.parametrize(
    ("tool", "input"),
    [
        ("read", {"file_path": "trap"}),
        ("read", {"file_path": "trap.png"}),
        ("write", {"file_path": "trap", "content": "x"}),
        ("edit", {"file_path": "trap", "old_string": "a", "new_string": "b"}),
        ("grep", {"pattern": "x", "path": "trap"}),
        ("grep", {"pattern": "x"}),
        ("glob", {"pattern": "**/*", "path": "trap"}),
    ],
)
async def test_what_is_no_file_holds_no_tool_up(
    kind: str, tool: str, input: dict[str, object], open_folder: Path
) -> None:
    make = {
        "pipe": "mkfifo trap trap.png",
        "socket": 'python3 -c \'import socket; [socket.socket(1).bind(n) for n in ("trap", "trap.png")]\'',
        "folder": "mkdir trap trap.png",
        "loop": "ln -s trap trap; ln -s trap.png trap.png",
    }[kind]
    async with hands(open_folder) as ours:
        assert not (await ours.bash(make)).is_error
        await answers(ours, tool, **input)
        assert await answers(ours, "bash", command="echo usable") == "usable"


async def test_a_pipe_that_keeps_taking_a_files_place_holds_no_tool_up(open_folder: Path) -> None:
    swap = (
        "(while :; do ln -f plain trap; rm -f trap; mkfifo trap 2>/dev/null; rm -f trap; done) >/dev/null 2>&1 &"
        " echo x > plain; echo begun"
    )
    async with hands(open_folder) as ours:
        await ours.bash(swap)
        for _ in range(40):
            await answers(ours, "read", file_path="trap")
            await answers(ours, "write", file_path="trap", content="x")
            await answers(ours, "edit", file_path="trap", old_string="x", new_string="x")
        for _ in range(5):
            await answers(ours, "grep", pattern="x")
        await ours.call("bash", restart=True)


@contextmanager
def swapping(place: Path, real: Path, link_to: Path) -> Generator[None]:
    """Meanwhile, `place` is now the real thing and now a link to elsewhere, as fast as that can be."""
    over = threading.Event()
    kept, link = place.with_name("kept"), place.with_name("link")
    real.rename(kept)
    link.symlink_to(link_to)

    def swap() -> None:
        made = 0
        while not over.is_set():
            for one in (kept, link):
                try:
                    os.rename(one, place)
                    os.rename(place, one)
                except OSError:  # the write tool has made a folder there meanwhile
                    made += 1
                    os.rename(place, place.with_name(f"made-{made}"))

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _did(act: object, roots: Roots, name: str, **given: object) -> str:
    assert callable(act)
    try:
        return str(act(roots, Arguments(name, given)))
    except ToolFailure as failure:
        return str(failure)


def test_a_folder_that_turns_into_a_link_meanwhile_leads_no_file_tool_out(tmp_path: Path) -> None:
    """The race at its fastest, without the sandbox that would stop it anyway."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for folder in (outside, inside / "real"):
        folder.mkdir(parents=True)
    (outside / "file").write_text(SECRET)
    (inside / "real" / "file").write_text("mine")
    roots = Roots(str(inside))
    with swapping(inside / "place", inside / "real", outside):
        said = [
            text
            for _ in range(700)
            for text in (
                _did(read, roots, "read", file_path="place/file"),
                _did(write, roots, "write", file_path="place/file", content="mine"),
                _did(write, roots, "write", file_path="place/new/file", content="mine"),
                _did(edit, roots, "edit", file_path="place/file", old_string="secret", new_string="evil"),
            )
        ]
    assert not any(SECRET in text for text in said)
    assert any(text.startswith("wrote") for text in said), "no attempt ever came through"
    assert (outside / "file").read_text() == SECRET
    assert [entry.name for entry in outside.iterdir()] == ["file"]


def test_a_file_that_turns_into_a_link_meanwhile_leads_no_file_tool_out(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    inside.mkdir()
    outside.write_text(SECRET)
    (inside / "real").write_text("mine")
    roots = Roots(str(inside))
    with swapping(inside / "place", inside / "real", outside):
        said = [
            text
            for _ in range(1000)
            for text in (
                _did(read, roots, "read", file_path="place"),
                _did(write, roots, "write", file_path="place", content="mine"),
                _did(edit, roots, "edit", file_path="place", old_string="secret", new_string="evil"),
            )
        ]
    assert not any(SECRET in text for text in said)
    assert outside.read_text() == SECRET


async def test_a_hard_link_cannot_be_made_to_what_is_only_shown(open_folder: Path) -> None:
    folder = open_folder / "shown"
    folder.mkdir(mode=0o755)
    marker(folder)
    binds = (Bind(folder, "/mnt/shown"),)
    script = """
        for source in ('/mnt/shown/secret', '/usr/bin/env', '/etc/passwd', '/run/corral/inside.pyz'):
            attempt('link ' + source, lambda: os.link(source, '/workspace/link') or 'made')
            attempt('link into', lambda: os.link('/workspace/attack.py', '/mnt/shown/new') or 'made')
            attempt('rename', lambda: os.rename(source, '/workspace/stolen') or 'moved')
            attempt('write', lambda: open(source, 'a'))
            attempt('chmod', lambda: os.chmod(source, 0o777) or 'done')
            attempt('times', lambda: os.utime(source, (1, 1)) or 'done')
            attempt('attribute', lambda: os.setxattr(source, 'user.evil', b'1') or 'done')
            attempt('truncate', lambda: os.truncate(source, 0) or 'done')
            def by_descriptor():
                held = os.open(source, os.O_RDONLY)
                return open('/proc/self/fd/%d' % held, 'a')
            attempt('again by descriptor', by_descriptor)
    """
    async with hands(open_folder, binds=binds) as ours:
        printed = await try_it(ours, script)
        for tool, input in (
            ("write", {"content": "evil"}),
            ("edit", {"old_string": "the", "new_string": "evil"}),
        ):
            await ours.bash("ln -sf /mnt/shown/secret /workspace/alias")
            for path in ("/mnt/shown/secret", "/workspace/alias"):
                assert (await ours.call(tool, file_path=path, **input)).is_error
    assert got_nothing(printed), printed
    assert (folder / "secret").read_text() == SECRET


async def test_a_session_can_neither_see_nor_guess_its_way_to_another(open_folder: Path) -> None:
    """Neighbours' workspaces, by the paths that the mount table gives away."""
    neighbour = open_folder / "sesn_other"
    neighbour.mkdir()
    marker(neighbour)
    neighbour.chmod(0o755)
    script = f"""
        roots = [line.split()[3] for line in open('/proc/self/mountinfo')]
        above = {{os.path.dirname(root) for root in roots}} | {{'{open_folder}'}}
        for folder in above:
            attempt(folder, lambda: open(folder + '/sesn_other/secret').read())
        for way in ('/workspace/../sesn_other', '/proc/self/cwd/../sesn_other', '/proc/1/cwd/../sesn_other'):
            attempt(way, lambda: os.listdir(way))
        held = os.open('/workspace', os.O_RDONLY)
        attempt('by descriptor', lambda: os.open('../sesn_other/secret', os.O_RDONLY, dir_fd=held))
        os.makedirs('/workspace/a/b', exist_ok=True)
        os.chdir('/workspace/a/b')
        os.rename('/workspace/a/b', '/workspace/b')
        attempt('out of a moved folder', lambda: open('../../sesn_other/secret').read())
        attempt('top', lambda: os.listdir('/workspace/../../../../' + '{open_folder}'))
    """
    async with hands(open_folder) as ours:
        printed = await try_it(ours, script)
    assert got_nothing(printed), printed


async def test_the_files_of_process_1_lead_no_further(open_folder: Path) -> None:
    """/proc/1/exe is a file of the host's: it can be neither changed nor closed to others."""
    script = """
        import shutil
        for pid in [name for name in os.listdir('/proc') if name.isdigit()]:
            exe = '/proc/%s/exe' % pid
            attempt('write ' + pid, lambda: os.open(exe, os.O_WRONLY))
            attempt('chmod ' + pid, lambda: os.chmod(exe, 0o4777) or 'done')
            attempt('attribute ' + pid, lambda: os.setxattr(exe, 'user.evil', b'1') or 'done')
            attempt('link ' + pid, lambda: os.link(exe, '/workspace/exe', follow_symlinks=True) or 'made')
            def map_files():
                return [name for name in os.listdir('/proc/%s/map_files' % pid)
                        if os.open('/proc/%s/map_files/%s' % (pid, name), os.O_RDWR)]
            attempt('mapped ' + pid, map_files)
    """
    async with hands(open_folder) as ours:
        printed = await try_it(ours, script)
    assert got_nothing(printed), printed


async def test_git_hooks_and_settings_of_the_workspace_run_nothing_outside(open_folder: Path) -> None:
    """Whatever a repository says to run, the worker runs no program that the workspace names."""
    ran = open_folder / "ran"
    plant = f"""
        git init -q . 2>/dev/null || mkdir -p .git/hooks
        for hook in post-checkout pre-commit post-merge fsmonitor-watchman post-index-change reference-transaction; do
            printf '#!/bin/sh\\necho ran >> {ran}\\n' > .git/hooks/$hook; chmod +x .git/hooks/$hook
        done
        printf '[core]\\n fsmonitor = "echo ran >> {ran}"\\n sshCommand = "echo ran >> {ran}"\\n pager = "echo ran >> {ran}"\\n' >> .git/config
        printf '[include]\\n path = {open_folder}/secret\\n' >> .git/config
        mkdir -p .corral/home; printf 'echo ran >> {ran}' | tee .bashrc .profile .bash_profile .corral/home/.bashrc sitecustomize.py
    """
    async with hands(open_folder) as ours:
        await ours.bash(plant)
    async with hands(open_folder) as ours:
        for tool, input in (("glob", {"pattern": "**/*"}), ("grep", {"pattern": "ran"})):
            await ours.call(tool, **input)
        await ours.bash("true")
    await asyncio.to_thread(remove_tree, open_folder / "workspace")
    assert not ran.exists()


async def test_a_few_links_do_not_make_a_search_endless(open_folder: Path) -> None:
    async with hands(open_folder, limits=Limits(cpu_seconds=2)) as ours:
        await ours.bash("for name in a b c d e f g h; do ln -s . $name; done")
        async with asyncio.timeout(60):
            said = await ours.call("glob", pattern="*/" * 14 + "nothing")
        assert said.is_error
        assert "timed out" in said.text
        assert (await ours.bash("echo usable")).text == "usable"


DEPTH = 3000


def _deep(top: Path, depth: int = DEPTH) -> None:
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for number in range(depth):
        name = f"{number}-" + "d" * 100
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_workspace_too_deep_for_any_path_can_be_removed(tmp_path: Path) -> None:
    _deep(tmp_path / "workspace")
    remove_tree(tmp_path / "workspace")
    assert not (tmp_path / "workspace").exists()


def test_what_a_removed_workspace_links_to_stays(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir(mode=0o500)
    workspace.mkdir()
    (workspace / "link").symlink_to(outside)
    (workspace / "closed").mkdir()
    (workspace / "closed" / "link").symlink_to(outside)
    (workspace / "closed").chmod(0)
    remove_tree(workspace)
    assert not workspace.exists()
    assert outside.stat().st_mode & 0o777 == 0o500


def test_a_folder_that_is_filled_while_it_is_emptied_does_not_hold_the_worker_up(tmp_path: Path) -> None:
    top = tmp_path / "memory"
    top.mkdir()
    over = threading.Event()

    def fill() -> None:
        number = 0
        while not over.is_set():
            number += 1
            try:
                (top / f"d{number}").mkdir()
                (top / str(number)).touch()
            except FileNotFoundError:
                continue

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        while not any(top.iterdir()):
            continue
        with contextlib.suppress(OSError):  # that somebody is filling it
            empty_folder(top, most=2000)
    finally:
        over.set()
        filling.join()


@pytest.mark.parametrize("mode", [0o755, 0o711, 0o500])
def test_a_folder_that_is_emptied_stays_as_open_as_it_was(tmp_path: Path, mode: int) -> None:
    top = tmp_path / "memory"
    (top / "below" / "deeper").mkdir(parents=True)
    (top / "below" / "note").touch()
    top.chmod(mode)
    empty_folder(top)
    assert list(top.iterdir()) == []
    assert top.stat().st_mode & 0o777 == mode
