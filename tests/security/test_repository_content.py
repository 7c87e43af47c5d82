"""Repositories and workspaces that are made to have git run something: nothing of it runs at the clone."""

import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest_asyncio

from corral.testing import ScriptedModel
from tests.e2e.conftest import model as model
from tests.e2e.test_repositories import TOKEN, Forge, a_forge, errors, repository
from tests.e2e.test_sandbox_network import ran
from tests.git_server import GitServer

# What every trap does. Inside it shows in the workspace, outside on the host.
TRAP = "echo caught > /workspace/caught; echo caught > {host}"


@pytest_asyncio.fixture
async def forge(database_url: str, model: ScriptedModel, open_folder: Path) -> AsyncGenerator[Forge]:
    """A git server, a gateway that may reach it, and a worker with real sandboxes."""
    async with a_forge(database_url, model, open_folder) as forge:
        yield forge


def marker(folder: Path) -> Path:
    """A file that anybody may write to, if only he gets to the host."""
    path = folder / "host"
    path.write_text("untouched")
    path.chmod(0o666)
    return path


def work_tree(git: GitServer, name: str) -> Path:
    """The work tree from which a repository of the server was made."""
    return git.root / f"work-{name.replace('/', '-')}"


def link(git: GitServer, work: Path, path: str) -> str:
    """Make a path the place of a submodule; returns the commit that it is to be at."""
    (work / path).mkdir()
    sha = git.git(work, "rev-parse", "HEAD")
    git.git(work, "update-index", "--add", "--cacheinfo", f"160000,{sha},{path}")
    return sha


def publish(git: GitServer, name: str) -> None:
    """Commit what is in the work tree, to the branch that is checked out by default."""
    work = work_tree(git, name)
    git.commit(work, "more")
    git.git(work, "push", "-q", str(git.bare(name)), "HEAD:main")


def literal_tree(git: GitServer, bare: Path, *entries: tuple[str, str, str]) -> str:
    """A tree that git itself would refuse to make: (mode, name, object)."""
    raw = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(sha) for mode, name, sha in entries)
    whole = f"tree {len(raw)}\0".encode() + raw
    sha = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
    source = git.root / f"tree-{sha}"
    source.write_bytes(raw)
    made = git.git(bare, "hash-object", "-t", "tree", "-w", "--literally", str(source))
    assert made == sha
    return sha


async def test_traps_in_a_repository_do_not_spring(forge: Forge, open_folder: Path) -> None:
    """Hooks, filters, submodules with commands for addresses, links out: the attacker gets nothing run,
    neither on the worker's machine nor in the sandbox that clones."""
    host = marker(open_folder)
    trap = TRAP.format(host=host)
    url = forge.git.add("acme/api", TOKEN)
    work = work_tree(forge.git, "acme/api")
    for name in ("hooks/post-checkout", ".githooks/post-checkout", ".husky/post-checkout"):
        path = work / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{trap}\n")
        path.chmod(0o755)
    (work / ".gitattributes").write_text("* filter=trap diff=trap merge=trap working-tree-encoding=UTF-8\n")
    (work / ".lfsconfig").write_text(f"[lfs]\n\turl = https://{forge.git.authority}/acme/other/info/lfs\n")
    (work / ".gitconfig").write_text(f"[core]\n\tfsmonitor = {trap}\n")
    (work / ".gitmodules").write_text(
        f'[submodule "../../../../hooks"]\n\tpath = sub\n\turl = ext::sh -c "{trap}"\n\tupdate = !{trap}\n'
        '[submodule "-u./caught"]\n\tpath = -x\n\turl = -u./caught\n'
    )
    (work / "out").symlink_to("../../../../../../etc/passwd")
    (work / "cache").symlink_to("/mnt/corral-cache")
    forge.git.git(work, "add", "-A")
    sha = link(forge.git, work, "sub")
    publish(forge.git, "acme/api")
    bare = forge.git.bare("acme/api")
    for number in range(300):
        forge.git.git(bare, "update-ref", f"refs/heads/{'x' * 180}/{number}", "main")
    session = await forge.session(repository(url))
    output, _ = await ran(
        session,
        "cat api/README.md; ls -d /workspace/caught api/.git/hooks api/sub/.git 2>&1; ls api/cache/ 2>&1;"
        " git -C api ls-files -s sub",
    )
    assert await errors(session) == []
    assert output.startswith("hello\n")
    assert "/workspace/caught': No such file" in output
    assert "api/sub/.git': No such file" in output
    assert "api/cache/': No such file" in output
    assert f"160000 {sha} 0\tsub" in output, "or the trap was not laid"
    assert host.read_text() == "untouched"


async def test_a_tree_that_brings_its_own_git_folder_is_not_checked_out(
    forge: Forge, open_folder: Path
) -> None:
    """A repository whose content is `.git/config` with a command in it: refused, told, and nothing runs."""
    host = marker(open_folder)
    url = forge.git.add("acme/api", TOKEN)
    git, bare = forge.git, forge.git.bare("acme/api")
    config = git.root / "config"
    config.write_text(f"[core]\n\tfsmonitor = {TRAP.format(host=host)}\n")
    blob = git.git(bare, "hash-object", "-w", str(config))
    inner = literal_tree(git, bare, ("100644", "config", blob))
    for name in (".git", ".GIT", "git~1"):
        outer = literal_tree(git, bare, ("40000", name, inner))
        who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        commit = git.git(bare, *who, "commit-tree", "-m", "trap", outer)
        git.git(bare, "update-ref", "refs/heads/trap", commit)
        checkout = {"type": "branch", "name": "trap"}
        session = await forge.session(repository(url, checkout=checkout))
        output, failed = await ran(
            session, "cat api/.git/config; ls -A | grep -v corral; git -C api status; true"
        )
        assert (failed, "fsmonitor" in output) == (False, False)
        assert "caught" not in output
        kinds = [error.type for error in await errors(session)]
        # Where file systems fold no case, the last two are names like any other.
        assert kinds == ["repository_checkout_error"] or (name != ".git" and kinds == [])
    assert host.read_text() == "untouched"


async def test_a_workspace_that_lies_in_wait_catches_nobody(forge: Forge, open_folder: Path) -> None:
    """An agent prepares git's configuration, its own home and the place of the clone before the repository
    is attached. What clones goes by none of it, and nothing is written outside of the workspace."""
    host = marker(open_folder)
    trap = TRAP.format(host=host)
    url = forge.git.add("acme/api", TOKEN)
    session = await forge.session()
    config = (
        f'[core]\n\tfsmonitor = "{trap}"\n\thooksPath = /workspace/hooks\n\tsshCommand = "{trap}"\n'
        f'[credential]\n\thelper = "!{trap}"\n[url "https://elsewhere.example/"]\n\tinsteadOf = https://\n'
        f'[filter "trap"]\n\tsmudge = "{trap}"\n[init]\n\ttemplateDir = /workspace/template\n'
        f'[alias]\n\tclone = "!{trap}"\n\tfetch = "!{trap}"\n'
    )
    hook = f"#!/bin/sh\n{trap}\n"
    prepare = f"""
mkdir -p hooks template/hooks ~/.config/git bin
for place in hooks/post-checkout template/hooks/post-checkout bin/git; do
cat > $place <<'END'
{hook}END
chmod +x $place; done
cat > ~/.gitconfig <<'END'
{config}END
cp ~/.gitconfig ~/.config/git/config
for rc in ~/.bashrc ~/.bash_profile ~/.profile; do echo '{trap}' > $rc; done
git init -q . 2>/dev/null; mkdir -p .git; cp ~/.gitconfig .git/config; rm -f caught; ls .git/config
ln -s /mnt/corral-cache later
"""
    output, failed = await ran(session, prepare)
    assert not failed, output
    assert ".git/config" in output
    body = repository(url)
    client: Any = forge.world.corral.client
    await client.post(f"/v1/sessions/{session.id}/resources", body=body, cast_to=object)
    await client.post(
        f"/v1/sessions/{session.id}/resources",
        body=repository(url, mount_path="/workspace/later/x"),
        cast_to=object,
    )
    output, _ = await ran(session, "cat api/README.md; cat caught 2>&1")
    assert "hello" in output
    assert "caught: No such file" in output
    assert host.read_text() == "untouched"
    [error] = await errors(session)
    assert error.type in ("repository_clone_error", "repository_checkout_error")
    second = await forge.session(repository(url))
    output, failed = await ran(second, "cat api/README.md && git -C api fsck")
    assert not failed, output


async def test_a_session_cannot_spoil_the_copy_that_sessions_share(forge: Forge) -> None:
    """The agent overwrites every file that it can write to; the next clone is what the server has."""
    url = forge.git.add("acme/api", TOKEN)
    first = await forge.session(repository(url))
    spoil = (
        "cat api/README.md; chmod -R u+w api; find /workspace /mnt /run /etc /var -type f -writable"
        " -not -path '*/.corral/*' 2>/dev/null |"
        ' while read -r file; do echo spoilt > "$file"; done 2>/dev/null; cat api/README.md; ls /mnt; true'
    )
    output, _ = await ran(first, spoil)
    assert output.startswith("hello\nspoilt\n")
    assert "corral-cache" not in output
    second = await forge.session(repository(url))
    output, failed = await ran(second, "cat api/README.md && git -C api fsck && git -C api status -s")
    assert not failed, output
    assert output.splitlines()[0] == "hello"
    assert "spoilt" not in output


async def test_submodules_of_other_repositories_get_no_token(forge: Forge) -> None:
    """A repository leads git to another private one of the same host: it is refused, and sees no token."""
    url = forge.git.add("acme/api", TOKEN)
    forge.git.add("acme/other", TOKEN)
    work = work_tree(forge.git, "acme/api")
    (work / ".gitmodules").write_text(
        f'[submodule "other"]\n\tpath = other\n\turl = {forge.git.url("acme/other")}\n'
        f'[submodule "up"]\n\tpath = up\n\turl = ../other\n'
    )
    link(forge.git, work, "other")
    link(forge.git, work, "up")
    publish(forge.git, "acme/api")
    for networking in (None, {"type": "limited", "allowed_hosts": [forge.git.host]}):
        session = await forge.session(repository(url), networking=networking)
        output, failed = await ran(
            session, "cd api && GIT_TERMINAL_PROMPT=0 git submodule update --init 2>&1; ls other up"
        )
        assert "README.md" not in output.replace("api/README.md", ""), output
        assert failed or "fatal" in output
    assert forge.git.server is not None
    others = [asked for asked in forge.git.server.asked if asked.path.startswith("/acme/other")]
    assert others, "or this test would show nothing"
    assert all(asked.header("authorization") is None for asked in others)
