"""What pages become: HTML as text, encodings, media, and limits."""

import base64

import pytest

from corral.gateway.mcp_results import RESULT_CHARACTERS
from corral.gateway.web_fetch import NotFetched, Page
from corral.gateway.web_pages import page_content
from corral.gateway.web_text import page_text
from tests.mcp_parts import PIXEL

URL = "https://docs.example.com/guide/start?v=2"


def text(page: str, most: int = 10_000) -> str:
    return page_text(page, URL, most=most).text


def shown(body: bytes, content_type: str, tokens: int | None = None) -> str:
    [block] = page_content(Page(URL, content_type, body), tokens)
    return str(block["source"]["data"] if block["type"] == "document" else block["text"])


def refused(body: bytes, content_type: str) -> str:
    with pytest.raises(NotFetched) as caught:
        page_content(Page(URL, content_type, body), None)
    return caught.value.code


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>one</p><p>two</p>", "one\n\ntwo"),
        ("a <b>bold</b>   word\n\n here", "a bold word here"),
        ("<h2>Title</h2>text", "## Title\n\ntext"),
        ("<ul><li>a</li><li>b <i>c</i></ul>", "- a\n- b c"),
        ("one<br>two<br/>three", "one\ntwo\nthree"),
        ("<pre>  x\n    y</pre>", "  x\n    y"),
        ("<table><tr><td>1</td><td>2</td></tr><tr><td>3</td></tr></table>", "| 1 | 2\n| 3"),
        ('<a href="/x">x</a>', "[x](https://docs.example.com/x)"),
        ('<a href="next">x</a>', "[x](https://docs.example.com/guide/next)"),
        ("<a href=https://other.example/?a=1&amp;b=2>x</a>", "[x](https://other.example/?a=1&b=2)"),
        ('<base href="https://cdn.example/y/"><a href="z">x</a>', "[x](https://cdn.example/y/z)"),
        ('<a href="#there">x</a>', "x"),
        ('<a href="javascript:alert(1)">x</a>', "x"),
        ('<a name="x">x</a>', "x"),
        ("<A HREF='/x' >x</A >", "[x](https://docs.example.com/x)"),
        ('<img alt="a cat" src=x>', "[Image: a cat]"),
        ("a<script>if (a<b) { x('</p>') }</script>b", "ab"),
        ("a<SCRIPT>x</sCript >b<style>p{}</style>c", "abc"),
        ("a<!-- no <p> --> b", "a b"),
        ("a<!-- never ends", "a"),
        ("a<script>never ends", "anever ends"),
        ("1 < 2 && 3 > 2", "1 < 2 && 3 > 2"),
        ("&lt;b&gt; &eacute; &#x4e2d; &nope;", "<b> é 中 &nope;"),
        ('<p title="a > b">x</p>', "x"),
        ("<p title='unclosed>x</p>", "x"),
        ("<textarea><b>raw</b></textarea>", "<b>raw</b>"),
        ("<svg><text>no</text></svg><noscript>no</noscript>yes", "yes"),
        ("<!DOCTYPE html><?xml version='1.0'?>x", "x"),
        ("<", "<"),
        ("a</", "a</"),
        ("", ""),
    ],
)
def test_html_is_read_as_a_person_would(page: str, expected: str) -> None:
    assert text(page) == expected


def test_the_title_stands_apart() -> None:
    read = page_text("<head><title> A\n &amp; B </title></head>x", URL, most=100)
    assert (read.title, read.text, read.cut) == ("A & B", "x", False)


def test_more_than_is_wanted_is_not_read() -> None:
    read = page_text("<p>word</p>" * 100_000, URL, most=50)
    assert (len(read.text), read.cut) == (50, True)


@pytest.mark.parametrize(
    "page",
    [
        "<!--" * 500_000,
        "<!" * 500_000,
        "<a " * 500_000,
        '<a "' * 500_000,
        "<a '\"" * 400_000,
        "<a href=" * 300_000,
        "<a x=' " * 300_000,
        "<" * 1_000_000,
        "<script" * 300_000,
        "<script>" * 300_000,
        "<svg>" * 400_000,
        "</" * 500_000,
        "<title>" * 300_000,
        "<p>" * 500_000,
        "<pre>" + " " * 1_000_000 + "x",
        "<pre>" + " \n" * 500_000,
        " " * 2_000_000,
        "&" * 1_000_000,
        "&#" + "9" * 1_000_000 + ";",
        "<p " + "a" * 2_000_000,
        "<p " + 'a="b" ' * 300_000 + ">",
        "<p " + " =" * 500_000 + ">",
        "<a " + 'x="=' * 300_000 + ">",
    ],
    ids=range(23),
)
def test_no_page_takes_time_out_of_proportion(page: str) -> None:
    """A reader that looked twice at each part of these would take hours, and the test would hang."""
    assert len(page_text(page, URL, most=10_000_000).text) <= len(page)


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        ("né".encode(), "text/plain", "né"),
        ("né".encode("latin-1"), "text/plain; charset=ISO-8859-1", "né"),
        ("né".encode("cp1252"), 'text/html; charset="windows-1252"', "né"),
        ("日本".encode("shift_jis"), "text/plain; charset=Shift_JIS", "日本"),
        ("né".encode("latin-1"), "text/plain", "n\ufffd"),
        ("né".encode("utf-16"), "text/plain", "né"),
        (b"\xef\xbb\xbfx", "text/plain", "x"),
        (b'<meta charset="iso-8859-1">n\xe9', "text/html", "né"),
        (b'<meta http-equiv=x content="text/html; charset=iso-8859-1">n\xe9', "text/html", "né"),
        (b"x", "text/plain; charset=zlib_codec", "x"),
        (b"x", "text/plain; charset=punycode", "x"),
        (b"x", "text/plain; charset=", "x"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b'{"a": 1}', "application/ld+json; charset=utf-8", '{"a": 1}'),
        (b"<a/>", "application/atom+xml", "<a/>"),
        (b"a,b", "TEXT/CSV", "a,b"),
        (b"<html><p>x", "", "x"),
        (b"x", "", "x"),
        (b"<p>  </p>", "text/html", f"[The page at {URL} holds no text.]"),
        (b"", "text/plain", f"[The page at {URL} holds no text.]"),
    ],
)
def test_text_is_decoded_as_it_says(body: bytes, content_type: str, expected: str) -> None:
    assert shown(body, content_type) == expected


def test_text_is_cut_at_the_limit_of_results_and_says_so() -> None:
    said = shown(b"x" * (RESULT_CHARACTERS + 1), "text/plain")
    assert said.startswith("x" * RESULT_CHARACTERS + "\n\n[Cut off here")
    assert shown(b"<p>" + b"x" * 900, "text/html", 100) == "x" * 400 + (
        "\n\n[Cut off here: the page has more than 400 characters of text.]"
    )


@pytest.mark.parametrize(
    ("body", "content_type", "code"),
    [
        (b"MZ", "application/octet-stream", "unsupported_content_type"),
        (b"\0\1", "", "unsupported_content_type"),
        (b"x", "video/mp4", "unsupported_content_type"),
        (b"x", "image/svg+xml2", "unsupported_content_type"),
        (b"<html>", "application/pdf", "unsupported_content_type"),
        (b"GIF89a", "image/png", "unsupported_content_type"),
        (PIXEL[:20], "image/png", "unsupported_content_type"),
        (PIXEL + bytes(5 * 1024 * 1024), "image/png", "content_too_large"),
    ],
)
def test_what_a_model_cannot_be_shown_is_refused(body: bytes, content_type: str, code: str) -> None:
    assert refused(body, content_type) == code


def test_media_without_a_type_are_known_by_their_beginning() -> None:
    [image] = page_content(Page(URL, "", PIXEL), None)
    assert (image["type"], base64.b64decode(image["source"]["data"])) == ("image", PIXEL)
    [paper] = page_content(Page(URL, "", b"\n%PDF-1.7 \0"), None)
    assert paper["source"]["media_type"] == "application/pdf"
