"""A secret that a server gives back is found in whatever form it comes."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from corral.gateway.scrubbing import Scrubber
from corral.wire.secret import MASK, Secret

SECRET = 'sec/ret+üml"aut 0123456789'


def forms() -> list[str]:
    raw = SECRET.encode()
    return [
        SECRET,
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        raw.hex(),
        raw.hex().upper(),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
    ]


@pytest.mark.parametrize("form", forms())
def test_it_is_found_in_every_form(form: str) -> None:
    told = Scrubber([Secret(SECRET)]).text(f"before {form} after")
    assert MASK in told
    assert SECRET[8:] not in told
    assert form.strip('"')[4:-4] not in told
    assert told.startswith("before ")
    assert told.endswith(" after")


@pytest.mark.parametrize("before", ["", "u:", "user:", "x-access-token:"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_it_is_found_in_base64_of_something_that_holds_it(
    before: str, encode: Callable[[bytes], bytes]
) -> None:
    whole = encode(f"{before}{SECRET} and more".encode()).decode()
    told = Scrubber([Secret(SECRET)]).text(whole)
    assert MASK in told
    left = b"".join(base64.b64decode(part + "A" * (-len(part) % 4)) for part in told.split(MASK))
    assert SECRET.encode()[4:-4] not in left


def test_keys_and_values_of_json_are_looked_through() -> None:
    told = Scrubber([Secret(SECRET)]).value({SECRET: [SECRET, 1, None, {"a": f"<{SECRET}>"}]})
    assert told == {MASK: [MASK, 1, None, {"a": f"<{MASK}>"}]}


def test_a_few_characters_are_no_secret() -> None:
    assert Scrubber([Secret("abc")]).text("abcabc") == "abcabc"
