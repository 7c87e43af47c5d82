"""The program brings byte code for the interpreter that runs it, and does without where there is none."""

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from corral.hands.sandbox.archive import program_archive, program_config, with_byte_code
from corral.hands.sandbox.provider import Limits


def starts(archive: bytes, folder: Path) -> bool:
    """Whether the program in the archive says that it is ready."""
    place = folder / "inside.pyz"
    place.write_bytes(archive)
    config = program_config(str(folder), Limits(), own_namespace=False, roots=[], read_only=[])
    command = [sys.executable, "-I", "-S", str(place), config]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0 and json.loads(done.stdout)["ready"] is True


def changed(archive: bytes, ending: str, change: Callable[[bytes], bytes]) -> bytes:
    """The archive with another content in the program's files with this ending."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            mine = name.startswith("inside/") and name.endswith(ending)
            new.writestr(name, change(content) if mine else content)
    return packed.getvalue()


def spoiled(_: bytes) -> bytes:
    return b"this is no Python ("


def test_byte_code_is_taken_in_place_of_the_source(tmp_path: Path) -> None:
    archive = with_byte_code(program_archive(), Path(sys.executable))
    assert starts(archive, tmp_path)
    assert starts(changed(archive, ".py", spoiled), tmp_path)
    assert not starts(changed(program_archive(), ".py", spoiled), tmp_path)


def test_byte_code_of_another_version_is_passed_over(tmp_path: Path) -> None:
    archive = with_byte_code(program_archive(), Path(sys.executable))
    assert starts(changed(archive, ".pyc", lambda code: b"\0\0\r\n" + code[4:]), tmp_path)


def test_an_interpreter_that_cannot_compile_leaves_the_sources(tmp_path: Path) -> None:
    archive = program_archive()
    assert with_byte_code(archive, Path("/bin/false")) == archive
    assert with_byte_code(archive, tmp_path / "nothing") == archive
