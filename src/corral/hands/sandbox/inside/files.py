"""read, write and edit. The figures are those of the toolset (contract, section 5.1)."""

from __future__ import annotations

import base64
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .arguments import Arguments
from .failure import ToolFailure, file_failure
from .paths import Roots

if TYPE_CHECKING:  # not evaluated: Python 3.8 could not
    Block = dict[str, Any]
    Content = str | list[Block]

_MAX_TEXT_BYTES = 256 * 1024
_MAX_IMAGE_BYTES = 5 * 1024 * 1024 // 4 * 3  # 5 MiB once encoded
_MAX_PDF_BYTES = 20 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_PDF = "application/pdf"
_MEDIA_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".pdf": _PDF,
}


def read(roots: Roots, arguments: Arguments) -> Content:
    """Return a text file, whole or by lines, or an image or PDF as a content block."""
    spelled = arguments.text("file_path")
    wanted = arguments.line_range("view_range")
    target = roots.resolve("read", spelled)
    try:
        size = _regular_size("read", spelled, target)
        media_type = _MEDIA_TYPES.get(target.suffix.lower())
        if media_type is not None:
            if wanted:
                raise ToolFailure("read: view_range is not supported for image/PDF files")
            return [_media_block(target, spelled, size, media_type)]
        if size > _MAX_TEXT_BYTES:
            if not wanted:
                raise ToolFailure(
                    f"read: {spelled} is {size} bytes, exceeds {_MAX_TEXT_BYTES}-byte limit. "
                    "Use the view_range parameter to read specific line ranges, e.g. view_range: [1, 500]."
                )
            with target.open("rb") as source:
                return _line_range(source, spelled, wanted)
        text = target.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolFailure(
            f"read: {spelled}: not valid UTF-8 text "
            "(binary files are only supported for image/PDF extensions)"
        ) from error
    except OSError as error:
        raise file_failure("read", spelled, error) from error
    if not wanted:
        return text
    first, last = _bounds(wanted)
    return "\n".join(text.split("\n")[first:last])


def write(roots: Roots, arguments: Arguments) -> Content:
    """Write a file and the directories above it."""
    spelled, content = arguments.text("file_path"), arguments.text("content")
    target = roots.resolve("write", spelled)
    roots.refuse_read_only("write", spelled, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_regular("write", spelled, target, content)
    except OSError as error:
        raise file_failure("write", spelled, error) from error
    return f"wrote {len(content)} bytes to {spelled}"


def edit(roots: Roots, arguments: Arguments) -> Content:
    """Replace a string that occurs once in a file, or every occurrence of it."""
    spelled, every = arguments.text("file_path"), arguments.flag("replace_all")
    old, new = arguments.text("old_string"), arguments.text("new_string")
    target = roots.resolve("edit", spelled)
    roots.refuse_read_only("edit", spelled, target)
    try:
        size = _regular_size("edit", spelled, target)
        if size > _MAX_TEXT_BYTES:
            raise ToolFailure(
                f"edit: {spelled} is {size} bytes, exceeds {_MAX_TEXT_BYTES}-byte limit. "
                "The edit tool loads the whole file and cannot modify a file this large."
            )
        text = target.read_bytes().decode("utf-8")
        count = text.count(old)
        if count == 0:
            raise ToolFailure(f"edit: old_string not found in {spelled}")
        if count > 1 and not every:
            raise ToolFailure(f"edit: old_string appears {count} times in {spelled} (must be unique)")
        _write_regular("edit", spelled, target, text.replace(old, new))
    except UnicodeDecodeError as error:
        raise ToolFailure(f"edit: {spelled}: not valid UTF-8 text (cannot edit binary files)") from error
    except OSError as error:
        raise file_failure("edit", spelled, error) from error
    return f"edited {spelled} ({count} replacement(s))"


def _regular_size(tool: str, spelled: str, target: Path) -> int:
    # Looked at before it is opened: opening a FIFO would wait for ever.
    found = target.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ToolFailure(f"{tool}: {spelled}: not a regular file")
    return found.st_size


def _write_regular(tool: str, spelled: str, target: Path, text: str) -> None:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ToolFailure(f"{tool}: {spelled}: not a regular file")
    # O_NONBLOCK: a FIFO that takes the file's place in between cannot hold this thread.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(str(target), flags, 0o666), "wb") as out:
        out.write(text.encode("utf-8"))


def _media_block(target: Path, spelled: str, size: int, media_type: str) -> Block:
    limit = _MAX_PDF_BYTES if media_type == _PDF else _MAX_IMAGE_BYTES
    if size > limit:
        raise ToolFailure(f"read: {spelled} is {size} bytes, exceeds {limit}-byte limit for image/PDF files.")
    data = base64.b64encode(target.read_bytes()).decode("ascii")
    return {
        "type": "document" if media_type == _PDF else "image",
        "source": {"type": "base64", "media_type": media_type, "data": data},
    }


def _bounds(wanted: tuple[int, int]) -> tuple[int, int]:
    """Turn 1-based inclusive lines, where an end of 0 or less means the last, into slice bounds."""
    start, end = wanted
    return max(0, start - 1), end if end > 0 else sys.maxsize


def _line_range(source: BinaryIO, spelled: str, wanted: tuple[int, int]) -> str:
    first, last = _bounds(wanted)
    kept = bytearray()
    line = 0
    while first < last and line < last and len(kept) <= _MAX_TEXT_BYTES + 1:
        chunk = source.read(_CHUNK_BYTES)
        if not chunk:
            break
        at = 0
        while at < len(chunk) and line < last:
            newline = chunk.find(b"\n", at)
            after = len(chunk) if newline < 0 else newline + 1
            if line >= first:
                kept += chunk[at:after]
            line += newline >= 0
            at = after
    if line >= last and kept.endswith(b"\n"):
        del kept[-1:]  # the newline that ends the last line asked for is not part of it
    if len(kept) <= _MAX_TEXT_BYTES:
        return kept.decode("utf-8")
    if last - first == 1:
        raise ToolFailure(
            f"read: line {first + 1} of {spelled} alone exceeds {_MAX_TEXT_BYTES}-byte limit. "
            "The read tool cannot return part of a line, so view_range cannot narrow this further."
        )
    raise ToolFailure(
        f"read: view_range [{wanted[0]}, {wanted[1]}] of {spelled} exceeds {_MAX_TEXT_BYTES}-byte limit. "
        "Narrow the view_range to read a smaller portion."
    )
