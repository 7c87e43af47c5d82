"""Signatures of webhook messages, against the Standard Webhooks package and its published example."""

import base64
from time import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook as Verifier

from corral.wire.secret import Secret
from corral.wire.webhook_signing import check_secret, new_secret, signed_headers


def test_a_fresh_secret_has_32_bytes_and_is_never_the_same() -> None:
    secrets = {new_secret().reveal() for _ in range(50)}
    assert len(secrets) == 50
    for secret in secrets:
        check_secret(Secret(secret))
        assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32


def test_the_known_example_is_signed_as_the_scheme_says() -> None:
    headers = signed_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
        [Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@given(body=st.text())
def test_any_text_is_signed_as_the_official_package_verifies_it(body: str) -> None:
    encoded = body.encode("utf-8", "replace")
    old, new = new_secret(), new_secret()
    headers = signed_headers("whe_1", int(time()), encoded, [new, old])
    for secret in (old, new):
        Verifier(secret.reveal()).verify(encoded, headers, json_parse=False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "whsec_not base64",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whsek_" + base64.b64encode(b"x" * 32).decode(),
    ],
)
def test_what_is_no_secret_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="a signing secret is") as caught:
        check_secret(Secret(text))
    assert not text or text not in str(caught.value) or text == "whsec_"
