"""The vault's keys among the settings: a slip is told at the start, with what to do about it."""

from pathlib import Path

import pytest

from corral.settings import SettingsError, load_settings
from corral.vault.keys import PrivateKey

KEY = PrivateKey.generate()
OTHER = PrivateKey.generate()


def complaints(**variables: str) -> dict[str, str]:
    environ = {f"CORRAL_VAULT__{name.upper()}": value for name, value in variables.items()}
    with pytest.raises(SettingsError) as error:
        load_settings(None, environ)
    for value in variables.values():
        assert value not in str(error.value)
    return dict(error.value.problems)


def test_a_pair_is_taken_and_its_private_half_is_masked_in_the_log() -> None:
    settings = load_settings(
        None, {"CORRAL_VAULT__PUBLIC_KEY": KEY.public.text, "CORRAL_VAULT__KEY": KEY.text.reveal()}
    )
    assert settings.vault.public_key == KEY.public.text
    assert settings.vault.key == KEY.text
    assert KEY.text in list(settings.secrets())
    assert KEY.text.reveal() not in repr(settings)


def test_the_public_key_may_stand_in_the_file_and_the_private_one_may_not(tmp_path: Path) -> None:
    path = tmp_path / "corral.yaml"
    path.write_text(f"vault:\n  public_key: {KEY.public.text}\n")
    assert load_settings(path, {}).vault.public_key == KEY.public.text
    path.write_text(f"vault:\n  key: {KEY.text.reveal()}\n")
    with pytest.raises(SettingsError, match="CORRAL_VAULT__KEY in the environment") as error:
        load_settings(path, {})
    assert KEY.text.reveal() not in str(error.value)


def test_a_damaged_key_is_told() -> None:
    found = complaints(public_key=KEY.public.text[:-2], key=KEY.text.reveal()[:-2])
    assert "damaged" in found["vault.public_key"]
    assert "damaged" in found["vault.key"]


def test_halves_that_are_mixed_up_are_told() -> None:
    found = complaints(public_key=KEY.text.reveal(), key=KEY.public.text)
    assert "gateway alone" in found["vault.public_key"]
    assert "public half" in found["vault.key"]


def test_halves_of_different_pairs_are_told() -> None:
    found = complaints(public_key=KEY.public.text, key=OTHER.text.reveal())
    assert "not the other half" in found["vault.public_key"]


def test_what_is_no_key_is_told_with_how_to_make_one() -> None:
    assert "corral admin vault-key create" in complaints(public_key="nonsense")["vault.public_key"]
