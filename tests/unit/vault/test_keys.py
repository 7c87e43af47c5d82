"""The vault's keys as text, and what is said about texts that are none."""

import copy
import pickle
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256

import msgspec
import pytest

from corral.vault.keys import PRIVATE_PREFIX, PUBLIC_PREFIX, PrivateKey, PublicKey, WrongKey
from corral.wire.secret import Secret


def test_both_halves_survive_as_text() -> None:
    key = PrivateKey.generate()
    assert PublicKey.parse(key.public.text).id == key.public.id
    assert PrivateKey.parse(key.text).public.text == key.public.text
    assert PrivateKey.parse(Secret(f" {key.text.reveal()}\n")).public.id == key.public.id


def test_no_two_keys_are_the_same() -> None:
    assert PrivateKey.generate().public.id != PrivateKey.generate().public.id


def slips(text: str) -> Iterator[str]:
    """The ways in which people spoil a key while they copy it."""
    yield from (text[:-1], text[:-8], text[:10], text + "A", text[:20] + "é" + text[21:])
    for at in range(10, len(text) - 1):
        yield text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        if text[at] != text[at + 1]:
            yield text[:at] + text[at + 1] + text[at] + text[at + 2 :]


def test_a_slip_in_a_key_is_noticed_and_not_repeated() -> None:
    key = PrivateKey.generate()
    for slip in slips(key.public.text):
        with pytest.raises(WrongKey, match="damaged"):
            PublicKey.parse(slip)
    for slip in slips(key.text.reveal()):
        with pytest.raises(WrongKey, match="damaged") as caught:
            PrivateKey.parse(Secret(slip))
        assert slip[10:20] not in str(caught.value) or len(slip) == 10


@pytest.mark.parametrize("text", ["", "x", "sk-ant-something", "corral_ak_abc"])
def test_what_is_no_key_is_told_with_how_to_make_one(text: str) -> None:
    with pytest.raises(WrongKey, match="vault-key create") as public:
        PublicKey.parse(text)
    with pytest.raises(WrongKey, match="vault-key create"):
        PrivateKey.parse(Secret(text))
    assert not text or text not in str(public.value).replace(PUBLIC_PREFIX, "")


def test_the_wrong_half_is_told_apart_and_not_repeated() -> None:
    key = PrivateKey.generate()
    with pytest.raises(WrongKey, match="gateway alone") as caught:
        PublicKey.parse(key.text.reveal())
    assert key.text.reveal().removeprefix(PRIVATE_PREFIX) not in str(caught.value)
    with pytest.raises(WrongKey, match="public half"):
        PrivateKey.parse(Secret(key.public.text))


@pytest.mark.parametrize("raw", [bytes(32), bytes([1]) + bytes(31)])
def test_a_value_that_is_no_usable_key_is_refused(raw: bytes) -> None:
    check = sha256(b"corral vault key check\x00" + raw).digest()[:4]
    with pytest.raises(WrongKey, match="not a usable key"):
        PublicKey.parse(PUBLIC_PREFIX + urlsafe_b64encode(raw + check).decode())


def test_a_private_key_cannot_be_printed_pickled_or_encoded() -> None:
    key = PrivateKey.generate()
    body = key.text.reveal().removeprefix(PRIVATE_PREFIX)
    for shown in (repr(key), str(key), f"{key}", repr([key]), repr(key.text)):
        assert body not in shown
    for leak in (pickle.dumps, msgspec.json.encode, copy.deepcopy):
        with pytest.raises(TypeError):
            leak(key)
