"""A secret shows itself to `reveal` alone."""

import copy
import json
import pickle
from collections.abc import Callable

import msgspec
import pytest

from corral.wire.secret import Secret

TEXT = "sk-ant-never-to-be-seen"


def test_no_way_of_printing_shows_it() -> None:
    secret = Secret(TEXT)
    for shown in (repr(secret), str(secret), ascii(secret), f"{secret}", f"{secret!r:>40}", f"{[secret]}"):
        assert TEXT not in shown


@pytest.mark.parametrize(
    "encode", [pickle.dumps, json.dumps, msgspec.json.encode, msgspec.msgpack.encode, vars]
)
def test_no_encoder_takes_it(encode: Callable[[object], object]) -> None:
    with pytest.raises(TypeError):
        encode(Secret(TEXT))


def test_reveal_gives_it() -> None:
    assert Secret(TEXT).reveal() == TEXT


def test_copies_are_the_same_secret() -> None:
    secret = Secret(TEXT)
    assert copy.deepcopy({"a": secret})["a"] is secret
    assert copy.copy(secret) == Secret(TEXT)
    assert Secret(TEXT) != Secret("another")
    assert Secret(TEXT) != TEXT
