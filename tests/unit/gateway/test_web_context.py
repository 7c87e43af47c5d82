"""Which URLs a text shows."""

import pytest

from corral.gateway.web_context import stands_in
from corral.gateway.web_fetch import parse_url


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.com/a", "see https://example.com/a"),
        ("https://example.com/a", "see (https://example.com/a), please."),
        ("https://example.com/a", "[a](https://example.com/a) and <https://example.com/b>"),
        ("https://example.com/a", "https://example.com/a](https://example.com/b)"),
        ("https://example.com/a", '{"url": "https://example.com/a"}'),
        ("https://example.com/a", "HTTPS://EXAMPLE.COM/a"),
        ("https://example.com/a", "https://example.com:443/a#there"),
        ("https://example.com/a", "https://example.com/x/../a"),
        ("https://example.com/", "https://example.com"),
        ("https://example.com", "look at example.com!"),
        ("http://example.com/a", "example.com/a"),
        ("https://example.com/a", "http://example.com/a"),
        ("https://example.com/a?b=1&c=2", "https://example.com/a?b=1&amp;c=2"),
        ("https://example.com/a_(b)", "https://example.com/a_(b)"),
        ("https://example.com/a.", "https://example.com/a."),
        ("https://example.com/ä", "https://example.com/ä"),
        ("https://example.com/%C3%A4", "https://example.com/ä"),
        ("https://münchen.example/", "https://xn--mnchen-3ya.example/"),
        ("https://xn--mnchen-3ya.example/", "auf https://münchen.example/."),
        ("http://[2606:2800::1]:8080/a", "http://[2606:2800:0::1]:8080/a http://[2606:2800::1]:8080/a"),
        ("http://93.184.215.14/a", "http://93.184.215.14/a"),
        ("https://example.com:8443/", "example.com:8443"),
        ("https://example.com/a", "other https://example.com/ab https://example.com/a"),
    ],
)
def test_a_url_that_stands_in_a_text_is_found(url: str, text: str) -> None:
    assert stands_in(parse_url(url), text)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://example.com/a?secret=1", "https://example.com/a"),
        ("https://example.com/a/b", "https://example.com/a"),
        ("https://example.com/a", "https://example.com/a/b"),
        ("https://example.com/a", "https://example.com/a?b=1"),
        ("https://example.com/", "https://sub.example.com/"),
        ("https://example.com/", "https://notexample.com/"),
        ("https://example.com/", "https://example.com.evil.example/"),
        ("https://example.com/", "someone@example.com"),
        ("https://example.com/", "https://user@example.com/"),
        ("https://example.com/", "https://example.community/"),
        ("http://example.com/a", "https://example.com/a"),
        ("https://example.com:8443/a", "https://example.com/a"),
        ("https://example.com/a", "https://example.com:8443/a"),
        ("https://example.com/A", "https://example.com/a"),
        ("https://sub.example.com/", "https://example.com/"),
        ("https://example.com/", "http://example.com:8080/"),
        ("https://example.com/", ""),
    ],
)
def test_a_url_that_does_not_stand_there_as_a_whole_is_not(url: str, text: str) -> None:
    assert not stands_in(parse_url(url), text)


@pytest.mark.parametrize("piece", ["example.com/)", "example.com ", "https://", "example.com/a](", ")" * 100])
def test_long_texts_are_looked_through_all_the_same(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    assert not stands_in(parse_url("https://example.com/nowhere"), text + "example.com/" + ")" * 100_000)
