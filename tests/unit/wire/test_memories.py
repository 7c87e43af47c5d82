"""Paths, prefixes and contents of memories (contract section 16.2)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.wire.decode import decode
from corral.wire.errors import InvalidRequest, MemoryPathConflict
from corral.wire.memories import (
    CreateMemory,
    UpdateMemory,
    after_folder,
    ancestors,
    check_content,
    check_path,
    check_prefix,
    check_sha256,
    sha256_of,
)


@pytest.mark.parametrize(
    "path",
    [
        "/a",
        "/a b/c.md",
        "/.hidden",
        "/...",
        "/..a",
        "/a\\b",
        "/Ünïcödé/日本語.md",
        "/" + "/".join("s" * 20),
        "/" + "x" * 1023,
        "/" + "é" * 511 + "x",
    ],
)
def test_a_path_that_could_be_a_file_is_taken(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "must start with /"),
        ("a", "must start with /"),
        ("/", "empty segment"),
        ("/a/", "empty segment"),
        ("//a", "empty segment"),
        ("/a//b", "empty segment"),
        ("/.", "segment . or .."),
        ("/a/../b", "segment . or .."),
        ("/" + "/".join("s" * 21), "at most 20 segments"),
        ("/" + "x" * 1024, "at most 1024 bytes"),
        ("/" + "é" * 512, "at most 1024 bytes"),
        ("/a\tb", "U+0009"),
        ("/a\x7f", "U+007F"),
        ("/a\u200bb", "U+200B"),
        ("/a\ufeff", "U+FEFF"),
        ("/a\u2028b", "U+2028"),
        ("/a\u2029b", "U+2029"),
        ("/a\ud800", "U+D800"),
        ("/cafe\u0301", "Normalization Form C"),
    ],
)
def test_a_path_that_could_be_no_file_is_refused_with_the_reason(path: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^path: ") as caught:
        check_path(path)
    assert message in caught.value.message


def test_a_prefix_names_a_folder() -> None:
    check_prefix("/")
    check_prefix("/a/b/")
    for prefix in ("", "a/", "/a", "//", "/a//", "/../"):
        with pytest.raises(InvalidRequest, match=r"^path_prefix: "):
            check_prefix(prefix)


def test_content_is_measured_in_bytes() -> None:
    check_content("x" * 102_400)
    check_content("é" * 51_200)
    for content in ("x" * 102_401, "é" * 51_201):
        with pytest.raises(InvalidRequest, match="at most 102400 bytes"):
            check_content(content)


@pytest.mark.parametrize("text", ["", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "a" * 64 + "\n"])
def test_a_hash_has_64_lowercase_digits(text: str) -> None:
    check_sha256(sha256_of("x"), "expected_content_sha256")
    with pytest.raises(InvalidRequest, match="expected_content_sha256: must be 64"):
        check_sha256(text, "expected_content_sha256")
    body = {"precondition": {"type": "content_sha256", "content_sha256": text}}
    with pytest.raises(InvalidRequest, match=r"precondition\.content_sha256"):
        decode(json.dumps(body).encode(), UpdateMemory)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"path": "/a"}, "content: Field required"),
        ({"content": ""}, "path: Field required"),
        ({"path": "/a", "content": None}, 'content: Input should be a valid string; pass ""'),
        ({"path": "/a", "content": "x\x00y"}, "content: holds a NUL character"),
        ({"path": "/a", "content": "\ud800"}, "content: holds a NUL character or an unpaired surrogate"),
        ({"path": "/a", "content": "", "name": "n"}, "name: Extra inputs"),
    ],
)
def test_what_cannot_be_kept_byte_for_byte_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(json.dumps(body).encode(), CreateMemory)
    assert message in caught.value.message


def test_a_precondition_needs_its_hash_and_knows_no_other_type() -> None:
    for precondition, message in (
        ({"type": "content_sha256"}, "precondition.content_sha256: Field required"),
        ({"type": "version", "content_sha256": "a" * 64}, '"version" is not a valid value'),
    ):
        with pytest.raises(InvalidRequest, match=message):
            decode(json.dumps({"precondition": precondition}).encode(), UpdateMemory)


def test_ancestors_are_listed_nearest_first() -> None:
    assert ancestors("/a/b/c") == ["/a/b", "/a"]
    assert ancestors("/a") == []


@given(st.text(st.characters(exclude_categories=("Cc", "Cf", "Cs", "Zl", "Zp")), min_size=1))
def test_a_folder_is_one_range_in_the_order_of_bytes(name: str) -> None:
    below = f"/a/{name}".encode()
    assert b"/a/" <= below < after_folder("/a/").encode()
    beside = f"/a{name}".encode()
    assert (b"/a/" <= beside < after_folder("/a/").encode()) == name.startswith("/")


def test_a_path_conflict_says_who_is_in_the_way_beside_its_message() -> None:
    error = json.loads(MemoryPathConflict("taken", memory_id="mem_1", path="/a").body("req_1"))["error"]
    assert error == {
        "type": "memory_path_conflict_error",
        "message": "taken",
        "conflicting_memory_id": "mem_1",
        "conflicting_path": "/a",
    }
