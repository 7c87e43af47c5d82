"""What the persistent shell promises beyond the official toolset. In a real sandbox."""

import asyncio
from pathlib import Path

import pytest

from tests.unit.hands.sandbox.given import hands
from tests.unit.hands.sandbox.watched import seconds, until_running, watching


@pytest.fixture(params=["bubblewrap", "process"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    "escape",
    ["sleep {s} & sleep {s}", "setsid sleep {s} & sleep {s}", "(setsid nohup sleep {s} &) ; sleep {s}"],
    ids=["same-group", "own-session", "own-session-and-orphan"],
)
async def test_a_timed_out_command_leaves_no_child_behind(
    provider: str, escape: str, open_folder: Path
) -> None:
    async with hands(open_folder, provider) as ours:
        marker = f"61{abs(hash((provider, escape))) % 10_000}.5"
        call = asyncio.create_task(ours.bash(f"echo up; {escape.format(s=marker)}", timeout_ms=700))
        with watching(await until_running(f"sleep\0{marker}")) as left:
            assert (await call).text == "bash: bash command timed out after 0.7s\nup"
            assert left.have_ended()
        assert (await ours.bash("echo usable")).text == "usable"


async def test_a_restart_kills_what_ran_in_the_background(provider: str, open_folder: Path) -> None:
    async with hands(open_folder, provider) as ours:
        await ours.bash(f"setsid sleep {seconds(62345)} & echo")
        with watching(await until_running(f"sleep\0{seconds(62345)}")) as left:
            await ours.call("bash", restart=True)
            assert left.have_ended()


async def test_a_child_in_the_background_survives_the_end_of_its_command(
    provider: str, open_folder: Path
) -> None:
    async with hands(open_folder, provider) as ours:
        await ours.bash(f"sleep {seconds(63456)} & echo")
        assert await until_running(f"sleep\0{seconds(63456)}")
        assert (await ours.bash("jobs -r | wc -l")).text.strip() == "1"


async def test_cancelling_a_call_kills_its_command_and_leaves_the_sandbox_usable(
    provider: str, open_folder: Path
) -> None:
    async with hands(open_folder, provider) as ours:
        call = asyncio.create_task(ours.bash(f"sleep {seconds(64567)}"))
        with watching(await until_running(f"sleep\0{seconds(64567)}")) as left:
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert left.have_ended()
        assert ours.sandbox.alive
        assert (await ours.bash("echo usable")).text == "usable"


async def test_cancelling_a_waiting_call_leaves_the_one_before_it_alone(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.bash("mkfifo gate")
        first = asyncio.create_task(ours.bash("read line <gate; echo got $line"))
        second = asyncio.create_task(ours.bash("touch never"))
        await ours.call("glob", pattern="*")
        second.cancel()
        await ours.call("glob", pattern="*")  # lines arrive in order: the cancellation has
        (ours.workspace / "gate").write_text("through\n")
        assert (await first).text == "got through"
        with pytest.raises(asyncio.CancelledError):
            await second
        assert (await ours.call("glob", pattern="never")).text == "no matches"


async def test_bash_calls_run_one_after_another_in_order(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await asyncio.gather(*(ours.bash(f"echo begin{n} >>log; echo end{n} >>log") for n in range(8)))
        expected = "".join(f"begin{n}\nend{n}\n" for n in range(8))
        assert (ours.workspace / "log").read_text() == expected


async def test_file_tools_answer_while_a_command_runs(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.bash("mkfifo gate")
        waiting = asyncio.create_task(ours.bash("cat gate"))
        await ours.call("write", file_path="a.txt", content="needle\n")
        assert (await ours.call("read", file_path="a.txt")).text == "needle\n"
        assert (await ours.call("grep", pattern="needle")).text == "/workspace/a.txt:1:needle"
        assert not waiting.done()
        (ours.workspace / "gate").write_text("late\n")
        assert (await waiting).text == "late"


async def test_a_search_survives_the_reset_of_the_shell(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.call("write", file_path="a.txt", content="needle\n" * 100)
        searches = [ours.call("grep", pattern="(n+e+)+dle$", path="a.txt") for _ in range(4)]
        restarts = [ours.call("bash", restart=True) for _ in range(2)]
        results = await asyncio.gather(*searches, *restarts)
        assert [result.is_error for result in results] == [False] * 6


async def test_endless_output_in_the_background_does_not_hold_up_a_call(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.bash("yes & sleep 0.1")
        assert (await ours.bash("echo still here >here; kill %1")).is_error is False
        assert (ours.workspace / "here").read_text() == "still here\n"


async def test_an_output_over_the_limit_is_all_in_the_file_that_the_result_names(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        result = await ours.bash("seq 1 200000")
        path = result.text.split("\n")[1].removeprefix("[all of it is in /workspace/").removesuffix("]")
        saved = (ours.workspace / path).read_text()
        assert saved == "".join(f"{number}\n" for number in range(1, 200_001))
        assert result.text.endswith("199999\n200000")
        assert len(result.text) < 103_000


async def test_what_corral_keeps_in_the_workspace_stays_out_of_searches_and_of_git(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        await ours.bash("echo needle > $HOME/note; seq 1 200000")
        assert (await ours.call("glob", pattern="**/*")).text == "no matches"
        assert (await ours.call("grep", pattern="needle")).text == "no matches"
        assert (await ours.call("grep", pattern="needle", path=".corral/home")).text.endswith("note:1:needle")
        assert (ours.workspace / ".corral/.gitignore").read_text() == "*\n"


async def test_a_shell_killed_from_outside_is_told_and_replaced(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        result = await ours.bash("echo last words; kill -9 $$")
        assert (
            result.text == "last words\n[the shell was killed by SIGKILL; the next command starts a new one]"
        )
        assert result.is_error
        assert (await ours.bash("echo again")).text == "again"


async def test_a_shell_that_closes_its_own_report_does_not_hang(open_folder: Path) -> None:
    close_all = 'for fd in /proc/$$/fd/*; do n=${fd##*/}; [ $n -gt 2 ] && eval "exec $n>&-"; done'
    async with hands(open_folder) as ours:
        assert (await ours.bash(close_all)).is_error
        assert (await ours.bash("echo again")).text == "again"


async def test_nul_and_invalid_text_come_out_as_valid_text(open_folder: Path) -> None:
    async with hands(open_folder) as ours:
        assert (await ours.bash("printf 'a\\0b\\377\\355\\240\\200'")).text == "a\0b" + "\ufffd" * 4
