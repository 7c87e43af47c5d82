"""The program that runs inside: what it is made of, and how it resolves paths."""

import ast
import os
import sys
from importlib import resources
from pathlib import Path

import pytest

from corral.hands.sandbox.inside.failure import ToolFailure
from corral.hands.sandbox.inside.output import well_formed
from corral.hands.sandbox.inside.paths import Roots, canonical

SOURCES = {
    source.name: source.read_text()
    for source in resources.files("corral.hands.sandbox.inside").iterdir()
    if source.name.endswith(".py")
}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_the_program_is_python_3_8_and_needs_the_standard_library_alone(name: str) -> None:
    tree = ast.parse(SOURCES[name], feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert str(node.module).split(".")[0] in sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("dir/file", "dir/file"),
        ("dir/../dir/./file", "dir/file"),
        ("to_dir/file", "dir/file"),
        ("chain/file", "dir/file"),
        ("new/deep/file", "new/deep/file"),
        ("dangling", "dir/none"),
        ("dangling_up", "dir/file"),
        ("dir/file/below", "dir/file/below"),
    ],
)
def test_a_path_is_followed_to_where_it_really_is(path: str, expected: str, tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path))
    (root / "dir").mkdir()
    (root / "dir" / "file").touch()
    (root / "to_dir").symlink_to("dir")
    (root / "chain").symlink_to(root / "to_dir")
    (root / "dangling").symlink_to("dir/none")
    (root / "dangling_up").symlink_to("none/../to_dir/file")
    assert canonical(str(root / path)) == str(root / expected)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "out/x", "back/../../x", "sibling"])
def test_a_path_that_leads_out_is_refused(path: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "work-sibling").touch()
    (work / "out").symlink_to("/")
    (work / "back").symlink_to("..")
    (work / "sibling").symlink_to("../work-sibling")
    with pytest.raises(ToolFailure, match="outside the session's working directory"):
        Roots(str(work)).resolve("read", path)


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ToolFailure, match="too many levels of symbolic links"):
        Roots(str(tmp_path)).resolve("read", "a")


def test_lone_surrogates_are_replaced_everywhere_and_nul_stays() -> None:
    assert well_formed({"a\ud800": ["\udfff", "x\0", 1, None]}) == {"a\ufffd": ["\ufffd", "x\0", 1, None]}
