"""Takes secrets out of whatever is about to be written down.

Three nets: a value is masked if the key that it stands under names a secret, text is masked wherever it has
the shape of one, and secrets known from the settings are masked wherever they stand. All err towards masking;
a count of tokens is a number and passes.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from corral.wire.secret import MASK, Secret

_SECRET_NAMES: Final = re.compile(
    r"(?i)(?:^|[-_.])(?:authorization|cookie|password|passwd|secrets?|token|credentials?|private[-_]?key"
    r"|api[-_]?key|access[-_]?key|environment[-_]?key|pool[-_]?key|signature)$"
)

_SHAPES: Final = re.compile(
    r"corral_(?:ak|ek|pk|vk|wk|wt|gg|st)_[A-Za-z0-9_\-]+"
    r"|whsec_[A-Za-z0-9+/=_\-]+"
    r"|sk-ant-[A-Za-z0-9_\-]+"
    r"|sk-[A-Za-z0-9_\-]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|xox[abprs]-[A-Za-z0-9\-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_INTRODUCED: Final = re.compile(
    # `Bearer x`, `x-api-key: x`, `"password": "x"`, `token=x`: the introduction stays, what follows goes.
    r"(?i)(\b(?:bearer|basic)\s+"
    r"|(?:authorization|x-api-key|api[-_]?key|password|passwd|secret|access_token|refresh_token|\btoken)"
    r"[\"']?\s*[:=]\s*(?:(?:bearer|basic)\s+)?b?[\"']?)"
    r"([^\s\"',;&)}\]]{4,})"
)
_USER_INFO: Final = re.compile(r"(\b[a-z][a-z0-9+.\-]*://[^\s:/@]*:)[^\s@/]+(@)")

_DEEPEST: Final = 12
_SHORTEST_KNOWN: Final = 6  # characters; anything shorter would mask half the log


class Redactor:
    """Removes secrets by name, by shape, and the ``known`` ones wherever they stand."""

    def __init__(self, known: Iterable[Secret] = ()) -> None:
        # Longest first, so that a secret that contains another goes as a whole.
        texts = sorted({one.reveal() for one in known}, key=len, reverse=True)
        self._known = re.compile(
            "|".join(re.escape(text) for text in texts if len(text) >= _SHORTEST_KNOWN) or "(?!)"
        )

    def text(self, text: str) -> str:
        """``text`` with everything in it that looks like a secret replaced by `[secret]`."""
        text = self._known.sub(MASK, text)
        text = _SHAPES.sub(MASK, text)
        text = _INTRODUCED.sub(lambda found: found.group(1) + MASK, text)
        return _USER_INFO.sub(rf"\1{MASK}\2", text)

    def value(self, value: Any, depth: int = 0) -> Any:
        """A copy of ``value`` (text, numbers, mappings, sequences, anything else) without secrets.

        What is not plain data is turned into text first. Beyond 12 levels nothing is shown.
        """
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Secret) or depth > _DEEPEST:
            return MASK
        if isinstance(value, bytes | bytearray):
            return self.text(bytes(value).decode("utf-8", "replace"))
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {self.text(str(key)): self._under(str(key), entry, depth) for key, entry in items}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.value(entry, depth + 1) for entry in cast("list[Any]", value)]
        return self.text(repr(value))

    def _under(self, key: str, value: Any, depth: int) -> Any:
        if _SECRET_NAMES.search(key) and value is not None and not isinstance(value, bool | int | float):
            return MASK
        return self.value(value, depth + 1)
