"""The `corral` command as such: quick, documented, and clear when something goes wrong."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from corral.cli import main


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(command, info_name=path[-1] if path else "corral")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from leaves(below, (*path, name))
    else:
        yield " ".join(path), command


LEAVES = dict(leaves(main))


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_the_overall_help_loads_next_to_nothing() -> None:
    modules = loaded_by("from corral.cli import main; main(['--help'], standalone_mode=False)")
    assert not modules & {"anthropic", "starlette", "uvicorn", "psycopg", "httpx", "msgspec", "yaml", "rich"}


@pytest.mark.parametrize("name", ["up", "serve", "worker", "admin", "doctor", "model"])
def test_no_commands_help_loads_the_inference_package_or_the_web_server(name: str) -> None:
    modules = loaded_by(f"from corral.cli import main; main(['{name}', '--help'], standalone_mode=False)")
    assert not modules & {"anthropic", "starlette", "uvicorn"}


@pytest.mark.parametrize("path", LEAVES)
def test_every_command_has_an_example_and_json_output(path: str) -> None:
    result = CliRunner().invoke(main, [*path.split(), "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert f"corral {path}" in result.output
    assert "--json" in result.output


@pytest.mark.parametrize("path", LEAVES)
def test_every_option_says_what_it_does(path: str) -> None:
    for parameter in LEAVES[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_the_overall_help_lists_every_command() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for path in LEAVES:
        assert path.split()[0] in output


def test_wrong_settings_are_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_SERVER__PORT", "many")
    result = CliRunner().invoke(main, ["serve"])
    assert result.exit_code == 1
    assert "CORRAL_SERVER__PORT: Expected `int`" in result.stderr
    assert "docs/settings.md" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("_logging_as_before")
def test_serve_without_a_database_says_what_to_set() -> None:
    result = CliRunner().invoke(main, ["serve"])
    assert result.exit_code == 1
    assert "CORRAL_STORE__URL" in result.stderr


@pytest.mark.usefixtures("_logging_as_before")
def test_serve_without_a_model_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_STORE__URL", "postgresql:///nowhere")
    result = CliRunner().invoke(main, ["serve"])
    assert result.exit_code == 1
    assert "ANTHROPIC_API_KEY" in result.stderr


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize(
    ("variables", "advice"),
    [
        ({}, "ANTHROPIC_BASE_URL"),
        ({"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, "ANTHROPIC_ENVIRONMENT_KEY"),
        (
            {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "ANTHROPIC_ENVIRONMENT_ID": "env_01"},
            "ENVIRONMENT_KEY",
        ),
    ],
)
def test_a_worker_without_an_employer_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], advice: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, ["worker"])
    assert result.exit_code == 1
    assert advice in result.stderr


@pytest.mark.usefixtures("_logging_as_before")
def test_a_database_that_does_not_answer_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_STORE__URL", "postgresql:///corral?host=/nonexistent")
    result = CliRunner().invoke(main, ["admin", "migrate"])
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr
    assert "What to do" in result.stderr
