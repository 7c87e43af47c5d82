"""Reads settings and finds everything that is wrong with them at once, each problem with its place."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec
import yaml
from msgspec import NODEFAULT

from corral.settings.describing import Setting, describe
from corral.settings.sections import Section, Settings
from corral.wire.secret import Secret

_PREFIX: Final = "CORRAL_"
_OWN_KEYS: Final = "corral_"
_LATER_PROVIDERS: Final = ("bedrock", "vertex", "foundry")


class Problem(NamedTuple):
    """One thing that is wrong: where (a key's path or a variable's name) and what."""

    place: str
    message: str


class SettingsError(Exception):
    """The settings cannot be used; ``problems`` has all of them."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        lines = [f"  {problem.place}: {problem.message}" for problem in problems]
        count = "One setting is" if len(lines) == 1 else f"{len(lines)} settings are"
        super().__init__("\n".join([f"{count} wrong:", *lines]))


def load_settings(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of the file ``path`` (None: no file) with ``environ`` over them.

    A variable that is empty counts as not set. Raises `SettingsError` with every problem found: unknown keys,
    wrong types and values, secrets in the file, settings that contradict each other, a file that is no YAML.
    """
    problems: list[Problem] = []
    settings = {(one.section, one.key): one for one in describe()}
    values: dict[tuple[str, str], Any] = {}
    for place, name, value in _from_file(path, settings, problems):
        _accept(place, settings[name], value, False, values, problems)
    for place, name, value in _from_environment(environ, settings, problems):
        _accept(place, settings[name], value, True, values, problems)
    key = environ.get("ANTHROPIC_API_KEY", "")
    # A shell that is set up for a client of Corral has Corral's own key there, which no model provider knows.
    if (
        key
        and not key.startswith(_OWN_KEYS)
        and values.get(("inference", "provider"), "anthropic") == "anthropic"
    ):
        values.setdefault(("inference", "api_key"), Secret(key))
    loaded = _build(values, problems)
    if problems:
        raise SettingsError(problems)
    return loaded


def _build(values: Mapping[tuple[str, str], Any], problems: list[Problem]) -> Settings:
    sections: dict[str, Section] = {}
    for field in msgspec.structs.fields(Settings):
        given = {key: value for (section, key), value in values.items() if section == field.name}
        section = sections[field.name] = cast("type[Section]", field.type)(**given)
        problems += [Problem(f"{field.name}.{key}", message) for key, message in section.conflicts()]
    return Settings(**cast("dict[str, Any]", sections))


def _from_file(
    path: Path | None, settings: Mapping[tuple[str, str], Setting], problems: list[Problem]
) -> Iterator[tuple[str, tuple[str, str], Any]]:
    if path is None:
        return
    try:
        content = yaml.load(path.read_text("utf-8"), Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(str(path), f"cannot be read: {error}"))
        return
    except yaml.YAMLError as error:
        problems.append(Problem(str(path), f"is not valid YAML: {' '.join(str(error).split())}"))
        return
    for section, entries in _mapping(content, str(path), problems):
        known = {key for name, key in settings if name == section}
        if not known:
            names = {name for name, _ in settings}
            problems.append(Problem(section, f"no such section{_nearest(section, names)}"))
            continue
        for key, value in _mapping(entries, section, problems):
            if key not in known:
                problems.append(Problem(f"{section}.{key}", f"no such setting{_nearest(key, known)}"))
            else:
                yield f"{section}.{key}", (section, key), value


def _mapping(content: Any, place: str, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    if content is None:  # an empty file or section
        return
    if not isinstance(content, dict):
        problems.append(Problem(place, f"must be a mapping, got {type(content).__name__}"))
        return
    for key, value in cast("dict[Any, Any]", content).items():
        yield str(key), value


def _from_environment(
    environ: Mapping[str, str], settings: Mapping[tuple[str, str], Setting], problems: list[Problem]
) -> Iterator[tuple[str, tuple[str, str], str]]:
    named = {one.variable: name for name, one in settings.items()}
    for variable in sorted(environ):
        if variable.startswith(_PREFIX) and "__" in variable and variable not in named:
            problems.append(Problem(variable, f"no such setting{_nearest(variable, named)}"))
    for name, one in settings.items():
        for variable in (one.variable, one.also):
            if variable is not None and environ.get(variable):
                yield variable, name, environ[variable]
                break


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _accept(
    place: str,
    setting: Setting,
    value: Any,
    from_environment: bool,
    values: dict[tuple[str, str], Any],
    problems: list[Problem],
) -> None:
    """Put the value, converted, among ``values``, or what is wrong with it among ``problems``."""
    name = (setting.section, setting.key)
    if value is None and setting.default is not NODEFAULT:
        return  # `key:` with nothing after it
    if not from_environment and setting.is_secret:
        complaint = _secret_in_file(setting, value)
        if complaint is not None:
            problems.append(Problem(place, complaint))
            return
    if name == ("inference", "provider") and value in _LATER_PROVIDERS:
        available = ", ".join(setting.choices)
        problems.append(Problem(place, f"{value!r} is not available in this version; available: {available}"))
        return
    try:
        values[name] = _convert(setting, value, from_environment)
    except (msgspec.ValidationError, yaml.YAMLError) as error:
        problems.append(Problem(place, " ".join(str(error).split())))


def _secret_in_file(setting: Setting, value: Any) -> str | None:
    elsewhere = f"does not belong into a file; set {setting.variable} in the environment"
    if not setting.allowed_without_password:
        return f"is a secret and {elsewhere}"
    if "password" in str(value) or ("@" in str(value) and ":" in str(value).split("@")[0].partition("//")[2]):
        return f"contains a password and {elsewhere}"
    return None


def _convert(setting: Setting, value: Any, from_environment: bool) -> Any:
    if setting.is_secret:
        if not isinstance(value, str):
            raise msgspec.ValidationError(f"Expected `str`, got `{type(value).__name__}`")
        return Secret(value)
    if from_environment and setting.is_mapping:
        value = yaml.load(value, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    return msgspec.convert(value, setting.type, strict=not from_environment)


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that occurs twice, where YAML libraries silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = cast("Any", self).construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} occurs twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)
