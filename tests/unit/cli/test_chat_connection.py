"""How a client command finds its server: option, environment, or `corral up` here; never by mistake."""

import json
from pathlib import Path

import pytest

from corral.cli.connection import Asked, find_connection
from corral.cli.failure import Failure

HERE = "http://127.0.0.1:8400"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data folder of a `corral up` that runs."""
    told = {"base_url": HERE, "api_key": "local", "environment_id": "env_default"}
    (tmp_path / "running.json").write_text(json.dumps(told))
    return tmp_path


def test_an_option_goes_before_the_environment(data: Path) -> None:
    variables = {"ANTHROPIC_BASE_URL": "http://b", "ANTHROPIC_API_KEY": "b"}
    found = find_connection(Asked("http://a/", "a", data), variables)
    assert (found.base_url, found.api_key, found.environment_id) == ("http://a", "a", None)


def test_the_environment_goes_before_what_runs_here(tmp_path: Path) -> None:
    variables = {"ANTHROPIC_BASE_URL": "http://b", "ANTHROPIC_API_KEY": "b"}
    found = find_connection(Asked(None, None, None), variables)
    assert (found.base_url, found.api_key) == ("http://b", "b")


def test_what_runs_here_is_used_when_nothing_was_named(data: Path) -> None:
    found = find_connection(Asked(None, None, data), {})
    assert (found.base_url, found.api_key, found.environment_id) == (HERE, "local", "env_default")


def test_a_key_for_the_claude_api_is_not_sent_to_what_runs_here(data: Path) -> None:
    assert find_connection(Asked(None, None, data), {"ANTHROPIC_API_KEY": "sk-real"}).api_key == "local"


def test_the_address_of_what_runs_here_needs_no_key(data: Path) -> None:
    found = find_connection(Asked(HERE, None, data), {})
    assert (found.api_key, found.environment_id) == ("local", "env_default")


def test_nothing_to_be_found_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="none runs on this machine") as failure:
        find_connection(Asked(None, None, tmp_path), {})
    assert "`corral up`" in str(failure.value.advice)
    assert "ANTHROPIC_BASE_URL" in str(failure.value.advice)


def test_an_address_without_a_key_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no API key for http://a") as failure:
        find_connection(Asked("http://a", None, tmp_path), {})
    assert "ANTHROPIC_API_KEY" in str(failure.value.advice)


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "running.json").write_text("{")
    with pytest.raises(Failure, match="damaged"):
        find_connection(Asked(None, None, tmp_path), {})


def test_a_connection_never_prints_its_key(data: Path) -> None:
    assert "local" not in repr(find_connection(Asked(None, None, data), {}))
