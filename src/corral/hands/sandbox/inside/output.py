"""Turning what a tool returned into content blocks that any JSON reader and the model can take."""

from __future__ import annotations

import os

from .failure import ToolFailure
from .paths import PRIVATE_DIRECTORY
from .quick import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO


#: Characters of one result. What is longer goes to a file, and the model gets a preview with its path.
RESULT_LIMIT = 100_000
_PREVIEW_CHARACTERS = 10_000
#: Bytes of one saved output, so that an endless one does not fill the disk.
_SAVED_BYTES = 64 * 1024 * 1024

_NO_OUTPUT = "(no output)"


def well_formed(value: Any) -> Any:
    """Return JSON `value` with every lone surrogate in it replaced by U+FFFD. NUL stays."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            # A pair written as two escapes has been joined by the JSON reader: what is left stands alone.
            return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in value)
        return value
    if isinstance(value, list):
        return [well_formed(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {well_formed(key): well_formed(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value


def text_blocks(text: str) -> list[dict[str, Any]]:
    """Return `text` as the one block of a result. An empty text, which the model API refuses, says so."""
    return [{"type": "text", "text": well_formed(text) or _NO_OUTPUT}]


class Outputs:
    """The directory for outputs that are too large for a result."""

    def __init__(self, workdir: str) -> None:
        self._workdir = workdir

    def create(self, tool: str) -> tuple[str, BinaryIO]:
        """Open a new file for an output of `tool`; returns its path and the file. Raises `OSError`."""
        private = os.path.join(self._workdir, PRIVATE_DIRECTORY)
        directory = os.path.join(private, "outputs")
        os.makedirs(directory, exist_ok=True)
        keep_out_of_git(private)
        path = os.path.join(directory, f"{tool}-{os.urandom(6).hex()}.txt")
        return path, open(path, "xb")

    def blocks(
        self, tool: str, content: str | list[dict[str, Any]], source: str | None = None
    ) -> list[dict[str, Any]]:
        """Return `content` as blocks. Text over the limit becomes a preview that says where the rest is.

        source: path where the whole text already is; without it the text is saved to a new file.
        """
        if not isinstance(content, str):
            return content
        text = well_formed(content)
        # A shell keeps its own last part and says where the whole is.
        if len(text) > RESULT_LIMIT and tool != "bash":
            text = self._preview(tool, text, source)
        return text_blocks(text)

    def _preview(self, tool: str, text: str, source: str | None) -> str:
        if source is None:
            try:
                source, out = self.create(tool)
                with out:
                    out.write(text.encode("utf-8"))
            except OSError as error:
                raise ToolFailure(
                    f"{tool}: the output has {len(text)} characters, more than {RESULT_LIMIT}, and cannot be "
                    f"saved to a file ({error.strerror}); ask for less at a time"
                ) from error
        return (
            f"[output truncated: {len(text)} characters are more than {RESULT_LIMIT}. All of it is in "
            f"{source}; read it in parts with view_range, or search it with grep. The first "
            f"{_PREVIEW_CHARACTERS} characters follow.]\n{text[:_PREVIEW_CHARACTERS]}"
        )


def keep_out_of_git(private: str) -> None:
    """Make git ignore Corral's own directory when the workspace is a repository. Raises `OSError`."""
    marker = os.path.join(private, ".gitignore")
    try:
        with open(marker, "xb", buffering=0) as out:
            out.write(b"*\n")
    except FileExistsError:
        return  # whatever it is: not to be opened


class Tail:
    """The last bytes of a stream of unknown length, with the whole of it in a file once it is too long."""

    def __init__(self, limit: int, outputs: Outputs, tool: str) -> None:
        self._limit = limit
        self._outputs = outputs
        self._tool = tool
        self._kept = bytearray()
        self._file: BinaryIO | None = None
        self._saved = 0
        self.truncated = False
        self.path: str | None = None

    def add(self, chunk: bytes) -> None:
        """Take the next bytes."""
        if self.truncated:
            self._save(chunk)
        self._kept += chunk
        over = len(self._kept) - self._limit
        if over <= 0:
            return
        if not self.truncated:
            self.truncated = True
            self._open()
            self._save(bytes(self._kept))
        del self._kept[:over]

    def _open(self) -> None:
        try:
            self.path, self._file = self._outputs.create(self._tool)
        except OSError:
            self._file = None  # no room for a copy: the result then names no path, and keeps its last part

    def _save(self, chunk: bytes) -> None:
        room = _SAVED_BYTES - self._saved
        if self._file is None or room <= 0:
            return
        try:
            self._file.write(chunk[:room])
            self._saved += len(chunk)
        except OSError:
            self._saved = _SAVED_BYTES  # disk full: what was saved stays readable

    def finish(self) -> bytes:
        """Close the file and return what was kept."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:
                self.path = None  # the last part did not reach the disk: do not promise the whole
        return bytes(self._kept)
