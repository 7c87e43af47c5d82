"""The example file and the documentation say what the code does."""

from pathlib import Path

import yaml

from corral.settings import Settings, load_settings
from corral.settings.describing import describe
from corral.settings.reference import DOCUMENT, EXAMPLE, render_document, render_example

ROOT = Path(__file__).parents[3]


def test_the_example_file_is_up_to_date() -> None:
    assert (ROOT / EXAMPLE).read_text("utf-8") == render_example(), "run `make format`"


def test_the_documentation_is_up_to_date() -> None:
    assert (ROOT / DOCUMENT).read_text("utf-8") == render_document(), "run `make format`"


def test_every_setting_stands_in_both() -> None:
    example, document = (ROOT / EXAMPLE).read_text("utf-8"), (ROOT / DOCUMENT).read_text("utf-8")
    for one in describe():
        assert f"{one.key}:" in example, one
        assert f"`{one.section}.{one.key}`" in document, one
        assert one.variable in document, one


def test_the_example_file_sets_nothing_but_defaults() -> None:
    assert load_settings(ROOT / EXAMPLE, {}) == Settings()


def test_the_example_file_is_read_even_with_every_line_in_force(tmp_path: Path) -> None:
    text = (ROOT / EXAMPLE).read_text("utf-8")
    plain = yaml.safe_load(text)
    assert set(plain) == {one.section for one in describe()}
    secrets = {one.key for one in describe() if one.is_secret}
    lines = [
        line.replace("  # ", "  ", 1) if line.strip("# ").partition(":")[0] in _keys() - secrets else line
        for line in text.splitlines()
    ]
    path = tmp_path / "corral.yaml"
    path.write_text("\n".join(lines))
    assert load_settings(path, {}).inference.models


def _keys() -> set[str]:
    return {one.key for one in describe()}
