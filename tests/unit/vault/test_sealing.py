"""The envelope: opens for its place and its key, and for nothing else."""

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.vault.keys import PrivateKey
from corral.vault.sealing import CannotOpen, Place, key_id, key_ring, open_sealed, rewrap, seal
from corral.wire.secret import Secret

KEY = PrivateKey.generate()
RING = key_ring(KEY)
HERE = Place("vcrd_here", "token")
SECRET = Secret("hunter2-hunter2")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=400))
def test_what_was_sealed_is_opened(text: str) -> None:
    assert open_sealed(seal(Secret(text), HERE, KEY.public), HERE, RING).reveal() == text


def test_two_envelopes_of_one_secret_have_nothing_in_common_but_version_and_key() -> None:
    one, other = seal(SECRET, HERE, KEY.public), seal(SECRET, HERE, KEY.public)
    assert one[:9] == other[:9]
    assert not {one[start : start + 8] for start in range(9, len(one) - 8)} & {
        other[start : start + 8] for start in range(9, len(other) - 8)
    }


def test_an_envelope_holds_nothing_of_the_secret() -> None:
    envelope = seal(SECRET, HERE, KEY.public)
    assert b"hunter2" not in envelope
    assert key_id(envelope) == KEY.public.id


def test_every_changed_byte_is_noticed() -> None:
    envelope = seal(SECRET, HERE, KEY.public)
    for index in range(len(envelope)):
        for flip in (1, 128):
            changed = bytearray(envelope)
            changed[index] ^= flip
            with pytest.raises(CannotOpen):
                open_sealed(bytes(changed), HERE, RING)


def test_every_cut_and_every_addition_is_noticed() -> None:
    envelope = seal(SECRET, HERE, KEY.public)
    for length in range(len(envelope)):
        with pytest.raises(CannotOpen):
            open_sealed(envelope[:length], HERE, RING)
    with pytest.raises(CannotOpen):
        open_sealed(envelope + b"\x00", HERE, RING)


@pytest.mark.parametrize(
    "elsewhere",
    [Place("vcrd_there", "token"), Place("vcrd_here", "refresh_token"), Place("vcrd_her", "token")],
)
def test_an_envelope_does_not_open_in_another_place(elsewhere: Place) -> None:
    with pytest.raises(CannotOpen, match="sealed for another row"):
        open_sealed(seal(SECRET, HERE, KEY.public), elsewhere, RING)


def test_the_ciphertext_of_another_envelope_does_not_fit() -> None:
    one, other = seal(SECRET, HERE, KEY.public), seal(Secret("x" * 15), HERE, KEY.public)
    with pytest.raises(CannotOpen):
        open_sealed(one[:89] + other[89:], HERE, RING)


def test_a_missing_key_is_named_and_so_are_those_at_hand() -> None:
    other = PrivateKey.generate()
    with pytest.raises(CannotOpen, match="CORRAL_VAULT__KEY") as caught:
        open_sealed(seal(SECRET, HERE, KEY.public), HERE, key_ring(other))
    assert KEY.public.id in str(caught.value)
    assert other.public.id in str(caught.value)


def test_a_wrong_key_under_the_right_id_does_not_open() -> None:
    with pytest.raises(CannotOpen):
        open_sealed(seal(SECRET, HERE, KEY.public), HERE, {KEY.public.id: PrivateKey.generate()})


def test_a_newer_form_is_told_apart_from_damage() -> None:
    envelope = bytes([2]) + seal(SECRET, HERE, KEY.public)[1:]
    with pytest.raises(CannotOpen, match="form 2"):
        key_id(envelope)


def test_a_new_key_takes_over_without_the_secret_being_sealed_anew() -> None:
    envelope, new = seal(SECRET, HERE, KEY.public), PrivateKey.generate()
    moved = rewrap(envelope, HERE, RING, new.public)
    assert key_id(moved) == new.public.id
    assert moved[89:] == envelope[89:]
    assert open_sealed(moved, HERE, key_ring(new)) == SECRET
    with pytest.raises(CannotOpen):
        open_sealed(moved, HERE, RING)
    with pytest.raises(CannotOpen):
        rewrap(envelope, Place("vcrd_there", "token"), RING, new.public)


def test_no_error_shows_the_secret() -> None:
    envelope = seal(SECRET, HERE, KEY.public)
    with pytest.raises(CannotOpen) as caught:
        open_sealed(envelope[:-1], HERE, RING)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
