"""Archives that somebody has made to do harm: each is refused, and nothing of it is unpacked."""

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.wire import archives
from corral.wire.archives import ArchiveLimits, Places, checked_path
from corral.wire.errors import ApiError, InvalidRequest, RequestTooLarge

LIMITS = ArchiveLimits(entries=20, total_bytes=1_000_000, depth=8)
UNIX = 3


def entry(name: str, mode: int = stat.S_IFREG | 0o644, *, system: int = UNIX) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x")
    # Set afterwards: the constructor tidies names.
    info.filename = name
    info.create_system = system
    info.external_attr = mode << 16
    return info


def packed(*entries: tuple[zipfile.ZipInfo | str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for info, content in entries:
            if isinstance(info, str):
                archive.writestr(entry(info), content, method)
            else:
                archive.writestr(info, content)
    return out.getvalue()


def read(body: bytes, limits: ArchiveLimits = LIMITS) -> dict[str, bytes]:
    """Everything in an archive, as a receiver of it would get it."""
    with archives.opened(io.BytesIO(body), limits) as archive:
        return {one.path: b"".join(archive.pieces(one.path)) for one in archive.entries}


def patched(body: bytes, change: Callable[[bytearray], None]) -> bytes:
    out = bytearray(body)
    change(out)
    return bytes(out)


def test_an_honest_archive_is_read() -> None:
    body = packed(("s/SKILL.md", b"a"), ("s/größe/ü.txt", b"b"), (entry("s/empty/", stat.S_IFDIR), b""))
    assert read(body) == {"s/SKILL.md": b"a", "s/größe/ü.txt": b"b"}
    assert read(packed(("s/a", b"x" * 100_000), method=zipfile.ZIP_DEFLATED)) == {"s/a": b"x" * 100_000}


def test_a_comment_at_the_end_is_harmless() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("s/a", b"1")
        archive.comment = b"from a release page"
    assert read(out.getvalue()) == {"s/a": b"1"}


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "//host/share",
        "../up",
        "s/../../up",
        "s/..",
        "s/./a",
        "./a",
        "s//a",
        "",
        ".",
        "C:/windows",
        "C:evil",
        "s/stream:hidden",
        "s\\..\\..\\up",
        "\\\\host\\share",
        "s/line\nbreak",
        "s/tab\t",
        "s/\x7f",
        "s/a ",
        " s/a",
        "s/\u202egpj.exe",
        "s/\u200b",
        "s/\ufffd",
        "s/" + "a" * 256,
        "s/" + "a/" * 8 + "a",
        "s/" + "/".join(["b" * 120] * 5),
    ],
)
def test_a_path_that_leads_elsewhere_or_hides_something_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^files: "):
        read(packed(("s/SKILL.md", b""), (name, b"x")))
    with pytest.raises(InvalidRequest, match=r"^files: "):
        checked_path(name, LIMITS.depth)


def test_a_name_that_zipfile_would_cut_at_a_nul_is_seen_whole() -> None:
    body = packed(("s/a.txtX.exe", b"x")).replace(b"a.txtX", b"a.txt\0")
    with pytest.raises(InvalidRequest, match="cannot be seen"):
        read(body)


def test_a_second_name_in_an_extra_field_is_not_heeded() -> None:
    info = entry("s/plain")
    other = b"../../up"
    extra = b"\x01" + struct.pack("<L", zlib.crc32(b"s/plain")) + other
    info.extra = struct.pack("<HH", 0x7075, len(extra)) + extra
    assert read(packed((info, b"x"))) == {"s/plain": b"x"}


def test_names_are_utf_8_or_refused() -> None:
    name = "s/größe"
    marked = packed((name, b"x"))
    raw = name.encode()
    broken = marked.replace(raw, raw.replace("ö".encode(), b"\xff\xfe"))
    with pytest.raises(InvalidRequest):
        read(broken)

    def unmark(out: bytearray) -> None:
        for magic, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            out[out.index(magic) + flags + 1] &= ~0x08

    # Tools that do not say so write UTF-8 all the same; of other code pages nothing is guessed.
    assert read(patched(marked, unmark)) == {name: b"x"}
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        read(patched(broken, unmark))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK])
@pytest.mark.parametrize("system", [UNIX, 0, 19])
def test_links_and_devices_are_refused_whatever_system_they_say_to_be_from(kind: int, system: int) -> None:
    with pytest.raises(InvalidRequest, match="a link or a device"):
        read(packed((entry("s/link", kind | 0o777, system=system), b"/etc/passwd")))


def test_a_folder_that_is_a_file_is_refused() -> None:
    for info, content in (
        (entry("s/a", stat.S_IFDIR | 0o755), b""),
        (entry("s/a/", stat.S_IFREG | 0o644), b""),
        (entry("s/a/", stat.S_IFDIR | 0o755), b"content"),
    ):
        with pytest.raises(InvalidRequest, match="folder"):
            read(packed((info, content)))


@pytest.mark.parametrize(
    "names",
    [
        ("s/a", "s/a"),
        ("s/a", "s/A"),
        ("s/straße", "s/STRASSE"),
        ("s/\u00e9", "s/e\u0301"),
        ("s/a", "s/a/b"),
        ("s/a/b", "s/a"),
        ("s/dir/a", "s/DIR/b"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_for_one_place_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="more than once"):
        read(packed(*((name, name.encode()) for name in names)))
    places = Places()
    places.add(names[0])
    with pytest.raises(InvalidRequest):
        places.add(names[1])


def test_encrypted_entries_are_refused() -> None:
    for flag in (0x1, 0x40):

        def encrypt(out: bytearray, flag: int = flag) -> None:
            out[out.index(b"PK\x01\x02") + 8] |= flag

        with pytest.raises(InvalidRequest, match="encrypted"):
            read(patched(packed(("s/a", b"x")), encrypt))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_of_compression_that_are_not_needed_are_refused(method: int) -> None:
    info = entry("s/a")
    info.compress_type = method
    with pytest.raises(InvalidRequest, match="deflate"):
        read(packed((info, b"x")))


def test_a_bomb_is_refused_by_what_its_directory_says() -> None:
    bomb = packed(("s/zeros", b"\0" * (LIMITS.total_bytes + 1)), method=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 10_000
    with pytest.raises(RequestTooLarge):
        read(bomb)


def test_a_bomb_that_lies_about_its_size_ends_where_it_said_it_would() -> None:
    bomb = packed(("s/zeros", b"\0" * 50_000_000), method=zipfile.ZIP_DEFLATED)

    def understate(out: bytearray) -> None:
        at = out.index(b"PK\x01\x02") + 24
        out[at : at + 4] = struct.pack("<L", 100)

    got: list[bytes] = []
    with archives.opened(io.BytesIO(patched(bomb, understate)), LIMITS) as archive:
        pieces = archive.pieces("s/zeros")
        with pytest.raises(InvalidRequest, match="cannot be read"):
            got.extend(pieces)
    assert sum(map(len, got)) <= 100


def test_entries_that_share_their_bytes_count_each() -> None:
    one = packed(("s/a", b"\0" * 600_000), method=zipfile.ZIP_DEFLATED)
    at = one.index(b"PK\x01\x02")
    directory, end = one[at:-22], bytearray(one[-22:])
    second = directory.replace(b"s/a", b"s/b")
    end[8:12] = struct.pack("<HH", 2, 2)
    end[12:16] = struct.pack("<L", 2 * len(directory))
    with pytest.raises(RequestTooLarge):
        read(one[:at] + directory + second + bytes(end))


def test_a_content_that_does_not_match_its_checksum_is_refused() -> None:
    body = packed(("s/a", b"honest content"))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read(body.replace(b"honest", b"forged"))


def test_a_local_name_other_than_that_of_the_directory_is_refused() -> None:
    body = packed(("s/a", b"x"))
    at = body.index(b"s/a")
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read(body[:at] + b"s/b" + body[at + 3 :])


def test_too_many_entries_are_refused() -> None:
    many = [(f"s/{n}", b"") for n in range(LIMITS.entries + 1)]
    with pytest.raises(InvalidRequest, match="more than 20 entries"):
        read(packed(*many))
    assert len(read(packed(*many[1:]))) == LIMITS.entries


def test_a_huge_directory_is_refused_before_it_is_read() -> None:
    body = packed(*((f"s/{n:0200}", b"") for n in range(6_000)))
    with pytest.raises(InvalidRequest, match="too many entries"):
        read(body)


def test_the_format_for_very_large_archives_is_refused() -> None:
    body = packed(("s/a", b"x"))
    locator = b"PK\x06\x07" + bytes(16)
    with pytest.raises(InvalidRequest, match=r"ZIP64|before it"):
        read(body[:-22] + locator + body[-22:])

    def overflow(out: bytearray) -> None:
        out[-14:-10] = b"\xff\xff\xff\xff"

    with pytest.raises(InvalidRequest, match="ZIP64"):
        read(patched(body, overflow))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"PK",
        b"PK\x03\x04",
        b"PK\x05\x06" + bytes(18),
        b"x" * 100,
        b"#!/bin/sh\n" + packed(("s/a", b"x")),
        packed(("s/a", b"x")) + b"trailing",
        packed(("s/a", b"x"))[:-1],
        packed(("s/a", b"x"))[10:],
    ],
)
def test_what_is_no_archive_from_end_to_end_is_refused(body: bytes) -> None:
    if body == b"PK\x05\x06" + bytes(18):
        assert read(body) == {}
        return
    with pytest.raises(InvalidRequest, match=r"^files: the zip archive cannot be read"):
        read(body)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_is_done_to_an_archive_it_is_read_in_bounds_or_refused(data: Any) -> None:
    body = bytearray(
        packed(
            ("s/SKILL.md", b"one"), ("s/b", b"\0" * 5000), ("s/c/ü", b"three"), method=zipfile.ZIP_DEFLATED
        )
    )
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255))
    try:
        files = read(bytes(body), ArchiveLimits(entries=5, total_bytes=6_000, depth=4))
    except ApiError:
        return
    assert sum(map(len, files.values())) <= 6_000
    for path in files:
        assert checked_path(path, 4) == path


def test_what_is_packed_is_the_same_whatever_the_order() -> None:
    files = {"s/b": b"2" * 100_000, "s/SKILL.md": b"1", "s/ü": b""}

    def made(names: list[str]) -> bytes:
        out = io.BytesIO()
        archives.packed(out, [(name, name == "s/b", iter([files[name]])) for name in names], 1_000_000)
        return out.getvalue()

    first, second = made(list(files)), made(list(reversed(files)))
    assert first == second
    assert read(first) == files
    with archives.opened(io.BytesIO(first), LIMITS) as archive:
        assert {one.path: one.executable for one in archive.entries} == {
            "s/b": True,
            "s/SKILL.md": False,
            "s/ü": False,
        }
    with pytest.raises(RequestTooLarge):
        archives.packed(io.BytesIO(), [("s/b", False, iter([b"x" * 10] * 3))], 29)
