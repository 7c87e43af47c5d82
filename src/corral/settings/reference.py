"""Writes `corral.example.yaml` and `docs/settings.md` from the sections' descriptions: the one place to edit.

``python -m corral.settings.reference`` renews both in the current folder; a test fails when they are behind.
"""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from corral.settings.describing import Setting, describe, sections

EXAMPLE: Final = Path("corral.example.yaml")
DOCUMENT: Final = Path("docs/settings.md")

_WIDTH: Final = 100

_EXAMPLE_HEAD: Final = """\
# Every setting of Corral, with its default. Copy what you change into a file of your own and pass it with
# --config. An environment variable CORRAL_<SECTION>__<KEY> wins over the file; secrets come from there alone.
"""

_DOCUMENT_HEAD: Final = """\
# Settings

Corral reads one YAML file (`--config corral.yaml`) and, over it, environment variables named
`CORRAL_<SECTION>__<KEY>`. A variable that is empty counts as not set. Secrets are read from the environment
alone; a secret in the file is an error. Unknown keys are errors too, and all errors are told at once.

`corral.example.yaml` shows the same settings as a file. Both are made from `src/corral/settings/`:
`make format` renews them.
"""


def render_example() -> str:
    """The text of `corral.example.yaml`."""
    return "\n".join([_EXAMPLE_HEAD, *_example_lines()]).rstrip() + "\n"


def _example_lines() -> Iterator[str]:
    by_section = _by_section()
    for name, section in sections():
        yield f"# {_first_line(section.__doc__)}"
        yield f"{name}:"
        for one in by_section[name]:
            yield from _comment(one)
            yield f"  {_example_entry(one)}"
            yield ""


def _comment(one: Setting) -> Iterator[str]:
    text = one.description
    if one.choices:
        text += f" One of: {', '.join(one.choices)}."
    if one.is_secret and not one.allowed_without_password:
        text += f" Secret: set {one.variable} in the environment."
    elif one.also is not None:
        text += f" Also read from {one.also}."
    for line in textwrap.wrap(text, _WIDTH):
        yield f"  # {line}"


def _example_entry(one: Setting) -> str:
    if one.is_secret and not one.allowed_without_password:
        return f"# {one.key}:"
    if one.example is not None:
        return f"# {one.key}: {json.dumps(one.example)}"
    if one.default is None:
        return f"# {one.key}:"
    return f"{one.key}: {_shown(one.default)}"


def render_document() -> str:
    """The text of `docs/settings.md`."""
    return "\n".join([_DOCUMENT_HEAD, *_document_lines()]).rstrip() + "\n"


def _document_lines() -> Iterator[str]:
    by_section = _by_section()
    for name, section in sections():
        yield f"## {name}"
        yield ""
        yield _first_line(section.__doc__)
        yield ""
        yield "| key | variable | default | what it does |"
        yield "| --- | --- | --- | --- |"
        for one in by_section[name]:
            variables = "<br>".join(f"`{variable}`" for variable in (one.variable, one.also) if variable)
            default = "none" if one.default is None else f"`{_shown(one.default)}`"
            yield f"| `{name}.{one.key}` | {variables} | {default} | {_document_text(one)} |"
        yield ""


def _document_text(one: Setting) -> str:
    text = one.description
    if one.choices:
        text += f" One of {', '.join(f'`{choice}`' for choice in one.choices)}."
    if one.is_secret and not one.allowed_without_password:
        text += " Secret: environment only."
    return text


def _by_section() -> dict[str, list[Setting]]:
    found: dict[str, list[Setting]] = {}
    for one in describe():
        found.setdefault(one.section, []).append(one)
    return found


def _shown(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value)


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().split("\n", 1)[0]


if __name__ == "__main__":
    EXAMPLE.write_text(render_example(), "utf-8")
    DOCUMENT.write_text(render_document(), "utf-8")
