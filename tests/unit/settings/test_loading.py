"""Settings come from a file and the environment, and every mistake in them is told at once."""

from pathlib import Path

import pytest

from corral.settings import Settings, SettingsError, load_settings
from corral.wire.secret import Secret


@pytest.fixture
def written(tmp_path: Path) -> "FileOf":
    return FileOf(tmp_path / "corral.yaml")


class FileOf:
    """Writes a settings file and gives its path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, text: str) -> Path:
        self.path.write_text(text)
        return self.path


def complaints(path: Path | None, environ: dict[str, str]) -> dict[str, str]:
    with pytest.raises(SettingsError) as error:
        load_settings(path, environ)
    for place, message in error.value.problems:
        assert f"{place}: {message}" in str(error.value)
    return dict(error.value.problems)


def test_without_anything_all_defaults_hold() -> None:
    assert load_settings(None, {}) == Settings()


def test_the_file_sets_what_it_names(written: FileOf) -> None:
    settings = load_settings(written("server:\n  port: 9000\nlog:\n  level: debug\n"), {})
    assert (settings.server.port, settings.server.host, settings.log.level) == (9000, "127.0.0.1", "debug")


def test_the_environment_wins_over_the_file(written: FileOf) -> None:
    path = written("server:\n  port: 9000\n  host: 0.0.0.0\n")
    settings = load_settings(path, {"CORRAL_SERVER__PORT": "9001"})
    assert (settings.server.port, settings.server.host) == (9001, "0.0.0.0")


def test_numbers_and_mappings_are_read_from_the_environment() -> None:
    settings = load_settings(
        None,
        {"CORRAL_BRAIN__LEASE_SECONDS": "2.5", "CORRAL_INFERENCE__MODELS": '{"claude-a": "local/b"}'},
    )
    assert settings.brain.lease_seconds == 2.5
    assert settings.inference.models == {"claude-a": "local/b"}


@pytest.mark.parametrize("text", ["", "server:\n", "server:\n  port:\n", "# nothing\n"])
def test_an_empty_file_section_or_value_leaves_the_default(written: FileOf, text: str) -> None:
    assert load_settings(written(text), {}) == Settings()


def test_an_empty_variable_counts_as_not_set() -> None:
    assert load_settings(None, {"CORRAL_SERVER__PORT": "", "ANTHROPIC_API_KEY": ""}) == Settings()


def test_all_mistakes_are_told_at_once(written: FileOf) -> None:
    path = written(
        "server:\n  prot: 1\n  port: x\nlogs: {}\nbrain: [1]\n"
        "worker:\n  max_sessions: 0\nlog:\n  level: loud\n"
    )
    told = complaints(path, {"CORRAL_SERVRE__HOST": "h", "CORRAL_STORE__POOL_SIZE": "many"})
    assert set(told) == {
        "server.prot",
        "server.port",
        "logs",
        "brain",
        "worker.max_sessions",
        "log.level",
        "CORRAL_SERVRE__HOST",
        "CORRAL_STORE__POOL_SIZE",
    }
    assert "did you mean port?" in told["server.prot"]
    assert "did you mean log?" in told["logs"]
    assert "did you mean CORRAL_SERVER__HOST?" in told["CORRAL_SERVRE__HOST"]


@pytest.mark.parametrize("name", ["server", "inference", "worker"])
def test_a_secret_in_the_file_is_refused_and_not_repeated(written: FileOf, name: str) -> None:
    key = "pool_key" if name == "worker" else "api_key"
    told = complaints(written(f"{name}:\n  {key}: hunter2\n"), {})
    assert f"CORRAL_{name.upper()}__{key.upper()}" in told[f"{name}.{key}"]
    assert "hunter2" not in str(told)


def test_a_database_address_may_stand_in_the_file_unless_it_has_a_password(written: FileOf) -> None:
    settings = load_settings(written("store:\n  url: postgresql://corral@db/corral\n"), {})
    assert settings.store.url == Secret("postgresql://corral@db/corral")
    for url in (
        "postgresql://corral:hunter2@db/corral",
        "host=db password=hunter2",
        "postgresql:///c?password=hunter2",
    ):
        told = complaints(written(f"store:\n  url: {url}\n"), {})
        assert "CORRAL_STORE__URL" in told["store.url"]
        assert "hunter2" not in str(told)


def test_secrets_come_from_the_environment_and_do_not_print() -> None:
    environ = {"CORRAL_SERVER__API_KEY": "key-one-key-one", "CORRAL_WORKER__POOL_KEY": "key-two-key-two"}
    settings = load_settings(None, environ)
    assert settings.server.api_key == Secret("key-one-key-one")
    assert not any(value in repr(settings) for value in environ.values())
    assert {secret.reveal() for secret in settings.secrets()} == set(environ.values())


def test_the_claude_api_key_is_taken_for_the_claude_api_alone() -> None:
    environ = {"ANTHROPIC_API_KEY": "from-anthropic"}
    assert load_settings(None, environ).inference.api_key == Secret("from-anthropic")
    own = {**environ, "CORRAL_INFERENCE__API_KEY": "own"}
    assert load_settings(None, own).inference.api_key == Secret("own")
    gateway = {
        **environ,
        "CORRAL_INFERENCE__PROVIDER": "gateway",
        "CORRAL_INFERENCE__BASE_URL": "http://127.0.0.1:4000",
    }
    assert load_settings(None, gateway).inference.api_key is None


def test_the_workers_variables_are_read_under_their_usual_names() -> None:
    environ = {
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:8400",
        "ANTHROPIC_ENVIRONMENT_ID": "env_01",
        "ANTHROPIC_ENVIRONMENT_KEY": "corral_ek_x",
    }
    worker = load_settings(None, environ).worker
    assert (worker.base_url, worker.environment_id) == ("http://127.0.0.1:8400", "env_01")
    assert worker.environment_key == Secret("corral_ek_x")


@pytest.mark.parametrize("provider", ["bedrock", "vertex", "foundry"])
def test_a_provider_of_a_later_version_is_refused_with_what_there_is(provider: str) -> None:
    told = complaints(None, {"CORRAL_INFERENCE__PROVIDER": provider})
    assert told["CORRAL_INFERENCE__PROVIDER"].endswith("available: anthropic, gateway")


def test_a_gateway_needs_an_address() -> None:
    assert (
        "needs its address"
        in complaints(None, {"CORRAL_INFERENCE__PROVIDER": "gateway"})["inference.base_url"]
    )


def test_an_address_must_be_one() -> None:
    told = complaints(None, {"CORRAL_INFERENCE__BASE_URL": "localhost:4000"})
    assert "http://" in told["inference.base_url"]


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    assert "cannot be read" in complaints(tmp_path / "none.yaml", {})[str(tmp_path / "none.yaml")]


@pytest.mark.parametrize(
    "text", ["server: [", "server: {port: 1, port: 2}\n", "a: !!python/object:os.system x\n"]
)
def test_a_file_that_is_not_plain_yaml_is_refused(written: FileOf, text: str) -> None:
    path = written(text)
    assert "not valid YAML" in complaints(path, {})[str(path)]


def test_a_file_that_is_a_list_is_refused(written: FileOf) -> None:
    path = written("- server\n")
    assert "must be a mapping" in complaints(path, {})[str(path)]


def test_a_key_of_corral_itself_is_not_taken_for_the_model_providers() -> None:
    assert load_settings(None, {"ANTHROPIC_API_KEY": "corral_ak_secret"}).inference.api_key is None
