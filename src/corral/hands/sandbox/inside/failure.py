"""What a tool call tells the model when it fails, and how to word a file system error for it."""

from __future__ import annotations

import errno


class ToolFailure(Exception):
    """A tool call failed in a way that the model should read: its text is the result, with `is_error`."""


class Cancelled(Exception):
    """The caller withdrew the call. Whatever it had started is gone by the time this is raised."""


_PHRASES = {
    errno.ENOENT: "no such file or directory",
    errno.ENOTDIR: "not a directory",
    errno.EISDIR: "is a directory",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EEXIST: "file already exists",
    errno.ELOOP: "too many levels of symbolic links",
}


def reason(error: OSError) -> str:
    """Return a short phrase for `error` that is the same on every system and names no host path."""
    phrase = _PHRASES.get(error.errno or 0)
    return phrase or (error.strerror or "i/o error").lower()


def file_failure(tool: str, path: str, error: OSError) -> ToolFailure:
    """Return the failure to raise when `tool` could not work on `path` (as the model spelled it)."""
    return ToolFailure(f"{tool}: {path}: {reason(error)}")
