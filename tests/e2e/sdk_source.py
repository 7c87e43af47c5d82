"""The official SDK's source distribution, for its examples: fetched once, kept where git ignores it."""

import asyncio
import os
import sys
import tarfile
from pathlib import Path

VERSION = "2.14.0"
_KEPT = Path(__file__).parents[2] / "build" / "sdk-source"


async def sdk_source() -> Path:
    """The unpacked source distribution.

    ``SDK_SOURCE_FOLDER`` names a folder where it lies already, or is to be kept.
    """
    kept = Path(os.environ.get("SDK_SOURCE_FOLDER", _KEPT))
    unpacked = kept / f"anthropic-{VERSION}"
    if not unpacked.is_dir():
        kept.mkdir(parents=True, exist_ok=True)
        await _download(kept)
        with tarfile.open(kept / f"anthropic-{VERSION}.tar.gz") as archive:
            archive.extractall(kept, filter="data")
    return unpacked


async def _download(folder: Path) -> None:
    arguments = ["download", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pip",
        *arguments,
        f"anthropic=={VERSION}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
