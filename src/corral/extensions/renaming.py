"""New ids for a copy of a log, and every reference to an old one changed with it. Pure.

Ids are unique among all sessions, so a copy cannot keep them. A model knows threads by their ids too, from
what it was told and has said; there they are changed within texts. What a model has thought is left alone:
its signature covers the words, so they go back as they came or not at all.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, cast

from corral.wire.ids import Prefix, new_id

_SIGNED: Final = frozenset({"thinking", "redacted_thinking"})
_VERDICT: Final = "verdict:"


class Renaming:
    """Old ids and the new ones in their place."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._threads: re.Pattern[str] | None = None

    def add(self, old: Iterable[str], prefix: Prefix) -> None:
        """Give new ids to these; one that has one keeps it."""
        for name in old:
            if name not in self.names:
                self.names[name] = new_id(prefix)
        if prefix == "sthr":
            threads = [re.escape(name) for name in self.names if self.names[name].startswith("sthr_")]
            self._threads = re.compile("|".join(threads)) if threads else None

    def name(self, old: str) -> str:
        """The new id in place of an old one; what is not known stays."""
        return self.names.get(old, old)

    def resolves(self, old: str | None) -> str | None:
        """What an event of the copy resolves."""
        if old is not None and old.startswith(_VERDICT):
            return _VERDICT + self.name(old.removeprefix(_VERDICT))
        return None if old is None else self.name(old)

    def value(self, value: Any) -> Any:
        """A JSON value with the new ids in it."""
        match value:
            case str():
                found = self.names.get(value)
                if found is not None:
                    return found
                return self._threads.sub(lambda match: self.name(match[0]), value) if self._threads else value
            case list():
                return [self.value(item) for item in cast("list[Any]", value)]
            case dict():
                mapping = cast("dict[str, Any]", value)
                if mapping.get("type") in _SIGNED:
                    return mapping
                return {self.name(key): self.value(item) for key, item in mapping.items()}
            case _:
                return value
