"""What the project depends on is written down, pinned and hashed."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
NAMES = sorted(
    {
        re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]
        for requirement in (
            *PROJECT["project"]["dependencies"],
            *PROJECT["dependency-groups"]["dev"],
            *(requirement for extra in EXTRAS.values() for requirement in extra),
        )
    }
)
DOCUMENTED = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/dependencies.md").read_text("utf-8"), re.MULTILINE)
LOCK = (ROOT / "requirements.lock").read_text("utf-8")


def test_every_dependency_is_documented_and_nothing_else() -> None:
    assert sorted(DOCUMENTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_dependency_is_locked(name: str) -> None:
    assert re.search(rf"^{re.escape(name)}(\[[a-z,-]+\])?==", LOCK, re.MULTILINE), "run `make lock`"


def test_every_locked_package_has_hashes() -> None:
    entries = re.findall(r"^[a-zA-Z0-9].*?(?=^[a-zA-Z0-9]|\Z)", LOCK, re.MULTILINE | re.DOTALL)
    assert entries
    assert not [entry for entry in entries if "--hash=sha256:" not in entry]


def test_the_lock_names_no_host() -> None:
    assert "://" not in LOCK
    assert "--index" not in LOCK
    assert not re.search(r"\b[a-z0-9-]+\.(org|com|io|net|internal)\b", LOCK)
