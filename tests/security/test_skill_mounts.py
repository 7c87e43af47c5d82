"""Skills in a sandbox: shown read-only, wherever the agent has tried to lead the mount."""

from pathlib import Path

import pytest

from tests.unit.hands.sandbox.given import hands

SKILLS = "/workspace/skills"


def skills(folder: Path) -> Path:
    """A folder of one skill, as a worker makes it."""
    skill = folder / "given" / "greeting"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("read me\n")
    (skill / "run").write_text("#!/bin/sh\necho ran\n")
    (skill / "run").chmod(0o555)
    return skill.parent


async def test_skills_can_be_read_and_run_and_not_changed(open_folder: Path) -> None:
    given = skills(open_folder)
    async with hands(open_folder, skills=given) as ours:
        assert (await ours.call("read", file_path="skills/greeting/SKILL.md")).text == "read me\n"
        assert (await ours.bash(f"{SKILLS}/greeting/run")).text == "ran"
        for tool, input in (
            ("write", {"file_path": f"{SKILLS}/greeting/SKILL.md", "content": "x"}),
            ("edit", {"file_path": "skills/greeting/run", "old_string": "ran", "new_string": "x"}),
        ):
            refused = await ours.call(tool, **input)
            assert refused.text.endswith(f"is inside read-only directory {SKILLS}")
        for command in (
            f"echo x > {SKILLS}/greeting/SKILL.md",
            f"chmod u+w {SKILLS}/greeting/run",
            f"rm -r {SKILLS}/greeting",
            f"mv {SKILLS} /workspace/away",
            f"rmdir {SKILLS}",
            f"umount {SKILLS}",
        ):
            assert (await ours.bash(command)).is_error, command
    assert (given / "greeting" / "SKILL.md").read_text() == "read me\n"


@pytest.mark.parametrize("target", ["/etc", "/tmp", "../../given", "/proc/1/root", "skills", "/nowhere"])
async def test_a_link_in_the_place_of_the_skills_is_put_aside_and_not_followed(
    open_folder: Path, target: str
) -> None:
    async with hands(open_folder) as ours:
        made = await ours.bash(f"ln -s {target} skills")
        assert not made.is_error
    async with hands(open_folder, skills=skills(open_folder)) as ours:
        assert (await ours.bash(f"stat -c %F {SKILLS}; cat {SKILLS}/greeting/SKILL.md")).text == (
            "directory\nread me"
        )
        assert (await ours.bash("ls -d skills-*; cat /etc/hostname")).text.endswith("sandbox")


async def test_a_file_or_a_folder_in_their_place_is_covered_and_kept(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.bash("mkdir skills; echo mine > skills/mine")
    given = skills(open_folder)
    async with hands(open_folder, skills=given) as ours:
        assert (await ours.bash("ls skills")).text == "greeting"
    async with hands(open_folder) as ours:
        assert (await ours.bash("cat skills/mine; rm -r skills; echo mine > skills")).text == "mine"
    async with hands(open_folder, skills=given) as ours:
        assert (await ours.bash("ls skills; cat skills-*")).text == "greeting\nmine"


async def test_without_a_fence_they_are_copies(open_folder: Path) -> None:
    given = skills(open_folder)
    async with hands(open_folder, "process", skills=given) as ours:
        assert (await ours.bash("skills/greeting/run; echo x > skills/greeting/SKILL.md")).text == "ran"
    assert (given / "greeting" / "SKILL.md").read_text() == "read me\n"
