"""The program brings byte code for the interpreter that runs it, and does without where there is none."""

import json
import subprocess
import sys
from pathlib import Path

from corral.hands.sandbox import archive
from corral.hands.sandbox.archive import packed_program, program_config
from corral.hands.sandbox.provider import Limits

FOLDER = Path(archive.__file__).parent
# What takes longer to import than the interpreter takes to start.
SLOW = {
    "collections",
    "ctypes",
    "enum",
    "json",
    "pathlib",
    "re",
    "socket",
    "subprocess",
    "threading",
    "typing",
}


def ran(program: bytes, folder: Path, *options: str) -> "subprocess.CompletedProcess[bytes]":
    """What became of the program, which was sent its configuration."""
    place = folder / "inside.pyz"
    place.write_bytes(program)
    config = program_config(str(folder), Limits(), own_namespace=False, roots=[], read_only=[])
    command = [sys.executable, "-I", "-S", *options, str(place)]
    return subprocess.run(command, input=config, capture_output=True, check=False)


def starts(program: bytes, folder: Path) -> bool:
    """Whether the program says that it is ready."""
    done = ran(program, folder)
    return done.returncode == 0 and json.loads(done.stdout)["ready"] is True


def test_byte_code_is_run_in_place_of_the_source(tmp_path: Path) -> None:
    program = packed_program(Path(sys.executable))
    assert starts(program, tmp_path)
    assert b"What comes through is for the gateway to judge" in program, "its texts are there"
    assert b"def find_spec" not in program, "and no source"


def test_an_interpreter_that_cannot_compile_leaves_the_sources(tmp_path: Path) -> None:
    for interpreter in (Path("/bin/false"), tmp_path / "nothing"):
        program = packed_program(interpreter)
        assert b"def find_spec" in program
        assert starts(program, tmp_path)


def test_nothing_slow_is_imported_before_the_first_command_has_run(tmp_path: Path) -> None:
    done = ran(packed_program(Path(sys.executable)), tmp_path, "-v")
    imported = {
        line.split()[1].strip("'") for line in done.stderr.decode().splitlines() if line.startswith("import ")
    }
    assert "inside.shell" in imported, "that is how they are told"
    # Without a process namespace of its own it asks the kernel for orphans, by way of ctypes.
    assert (imported & SLOW) - {"ctypes"} == set[str]()
    assert not {"inside.files", "inside.search", "inside.forward"} & imported


def test_a_way_out_brings_nothing_slow_before_somebody_goes(tmp_path: Path) -> None:
    script = f"import sys; sys.path.append({str(FOLDER)!r}); import inside.forward; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", script]
    loaded = subprocess.run(command, capture_output=True, check=True, text=True, cwd=tmp_path).stdout.split()
    assert "inside.forward" in loaded
    assert not SLOW & set(loaded)


def test_whoever_starts_it_and_is_gone_at_once_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "inside.pyz"
    place.write_bytes(packed_program(Path(sys.executable)))
    command = [sys.executable, "-I", "-S", str(place)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
