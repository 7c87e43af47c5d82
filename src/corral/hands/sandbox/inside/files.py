"""read, write and edit. The figures are those of the toolset (contract, section 5.1)."""

from __future__ import annotations

import base64
import errno
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
        with _opened("read", spelled, roots, target) as source:
            size = os.fstat(source.fileno()).st_size
            media_type = _MEDIA_TYPES.get(target.suffix.lower())
            if media_type is not None:
                if wanted:
                    raise ToolFailure("read: view_range is not supported for image/PDF files")
                return [_media_block(source, spelled, size, media_type)]
            if size > _MAX_TEXT_BYTES:
                if not wanted:
                    raise ToolFailure(
                        f"read: {spelled} is {size} bytes, exceeds {_MAX_TEXT_BYTES}-byte limit. "
                        "Use the view_range parameter to read specific line ranges, "
                        "e.g. view_range: [1, 500]."
                    )
                return _line_range(source, spelled, wanted)
            # No more than was seen: it may grow while it is read.
            text = source.read(size).decode("utf-8")
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
        _write("write", spelled, roots, target, content)
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
        with _opened("edit", spelled, roots, target) as source:
            size = os.fstat(source.fileno()).st_size
            if size > _MAX_TEXT_BYTES:
                raise ToolFailure(
                    f"edit: {spelled} is {size} bytes, exceeds {_MAX_TEXT_BYTES}-byte limit. "
                    "The edit tool loads the whole file and cannot modify a file this large."
                )
            text = source.read(size).decode("utf-8")
        count = text.count(old)
        if count == 0:
            raise ToolFailure(f"edit: old_string not found in {spelled}")
        if count > 1 and not every:
            raise ToolFailure(f"edit: old_string appears {count} times in {spelled} (must be unique)")
        _write("edit", spelled, roots, target, text.replace(old, new))
    except UnicodeDecodeError as error:
        raise ToolFailure(f"edit: {spelled}: not valid UTF-8 text (cannot edit binary files)") from error
    except OSError as error:
        raise file_failure("edit", spelled, error) from error
    return f"edited {spelled} ({count} replacement(s))"


def _opened(tool: str, spelled: str, roots: Roots, target: Path) -> BinaryIO:
    descriptor = _open_regular(tool, spelled, roots, target, os.O_RDONLY)
    return os.fdopen(descriptor, "rb")


def _write(tool: str, spelled: str, roots: Roots, target: Path, text: str) -> None:
    descriptor = _open_regular(tool, spelled, roots, target, os.O_WRONLY | os.O_CREAT)
    with os.fdopen(descriptor, "wb") as out:
        out.truncate()  # only now that it is known what it is
        out.write(text.encode("utf-8"))


def _open_regular(tool: str, spelled: str, roots: Roots, target: Path, flags: int) -> int:
    try:
        descriptor = roots.open(target, flags, make_folders=bool(flags & os.O_CREAT))
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nobody reads
            raise ToolFailure(f"{tool}: {spelled}: not a regular file") from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise ToolFailure(f"{tool}: {spelled}: not a regular file")


def _media_block(source: BinaryIO, spelled: str, size: int, media_type: str) -> Block:
    limit = _MAX_PDF_BYTES if media_type == _PDF else _MAX_IMAGE_BYTES
    if size > limit:
        raise ToolFailure(f"read: {spelled} is {size} bytes, exceeds {limit}-byte limit for image/PDF files.")
    data = base64.b64encode(source.read(size)).decode("ascii")
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
