"""From a page that was fetched to what the log and the model take. Pure.

Reading a large page takes seconds of CPU, so call it in a thread.

Text and HTML become a document of plain text, a PDF a document, a picture an image. What is admitted of media
is what the model's API takes (`corral.wire.media`): it would refuse every later request that holds anything
else.
"""

import re
from base64 import b64encode
from typing import Any, Final

from corral.gateway.mcp_results import RESULT_CHARACTERS, clean
from corral.gateway.web_fetch import NotFetched, Page
from corral.gateway.web_text import page_text
from corral.wire.errors import InvalidRequest
from corral.wire.media import IMAGE_BASE64_BYTES, IMAGE_TYPES, check_image, image_type

TOKEN_CHARACTERS: Final = 4
"""Characters that a token is taken for: the documented 100,000 are about 25,000 tokens (section 5.1)."""

_HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXT: Final = frozenset(
    {
        "application/json",
        "application/xml",
        "application/javascript",
        "application/yaml",
        "application/x-yaml",
    }
)
_PDF: Final = "application/pdf"
_HEAD: Final = 1024
_TITLE: Final = 200
_CHARSET: Final = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([a-zA-Z0-9_-]{1,30})""", re.IGNORECASE
)
# Those that pages are in. Python knows others, and some of them take very long for bytes chosen to that end.
_CHARSETS: Final = re.compile(
    r"utf-?8|utf-?16(?:[bl]e)?|(?:us-)?ascii|latin-?1|iso-8859-\d{1,2}|windows-125\d|cp125\d|koi8-[ru]"
    r"|gb2312|gbk|gb18030|big5|euc-(?:jp|kr)|shift[_-]jis"
)

Block = dict[str, Any]


def page_content(page: Page, max_content_tokens: int | None) -> list[Block]:
    """The content of the tool's result.

    Raises:
        NotFetched: it is of no type that can be shown, or too large for the model.
    """
    kind, _, parameters = page.content_type.partition(";")
    kind = kind.strip().lower() or _sniffed(page.body)
    if kind == _PDF:
        return [_pdf(page)]
    if kind in IMAGE_TYPES:
        return [_image(page, kind)]
    is_html = kind in _HTML
    if not (is_html or kind in _TEXT or kind.startswith("text/") or kind.endswith(("+json", "+xml"))):
        raise NotFetched("unsupported_content_type", f"it is of type {kind[:100]}.")
    most = RESULT_CHARACTERS
    if max_content_tokens is not None:
        most = min(most, max_content_tokens * TOKEN_CHARACTERS)
    text, title, cut = _decoded(page.body, parameters, is_html=is_html), "", False
    if is_html:
        read = page_text(text, page.url, most=most)
        text, title, cut = read.text, read.title, read.cut
    return [_document(page.url, clean(text), clean(title), most, cut=cut)]


def _document(url: str, text: str, title: str, most: int, *, cut: bool) -> Block:
    if not text.strip():
        return {"type": "text", "text": f"[The page at {url} holds no text.]"}
    if cut or len(text) > most:
        text = f"{text[:most]}\n\n[Cut off here: the page has more than {most:,} characters of text.]"
    return {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": text},
        "title": title[:_TITLE] or url[:_TITLE],
        "context": f"Fetched from {url}",
    }


def _pdf(page: Page) -> Block:
    # A PDF may carry a little before its header; readers look for it in the first kilobyte.
    if b"%PDF-" not in page.body[:_HEAD]:
        raise NotFetched("unsupported_content_type", "it says that it is a PDF, and is none.")
    return {
        "type": "document",
        "source": {"type": "base64", "media_type": _PDF, "data": b64encode(page.body).decode("ascii")},
        "title": page.url[:_TITLE],
        "context": f"Fetched from {page.url}",
    }


def _image(page: Page, kind: str) -> Block:
    data = b64encode(page.body).decode("ascii")
    if len(data) > IMAGE_BASE64_BYTES:
        raise NotFetched("content_too_large", "images have at most 5 MiB in base64.")
    try:
        check_image(kind, page.body, "the image")
    except InvalidRequest as error:
        raise NotFetched("unsupported_content_type", f"{error.message}.") from None
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _sniffed(body: bytes) -> str:
    """The type of what a server names no type for."""
    head = body[:_HEAD].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "text/html"
    if b"%PDF-" in body[:_HEAD]:
        return _PDF
    return image_type(body) or ("application/octet-stream" if b"\0" in body[:_HEAD] else "text/plain")


def _decoded(body: bytes, parameters: str, *, is_html: bool) -> str:
    """The text of bytes in the encoding that is named, or else in UTF-8."""
    for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if body.startswith(mark):
            return body.decode(name, "replace")
    charset = ""
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            charset = value.strip().strip("\"'").lower()
    if not charset and is_html and (found := _CHARSET.search(body[: 4 * _HEAD])) is not None:
        charset = found[1].decode("ascii").lower()
    return body.decode(charset if _CHARSETS.fullmatch(charset) else "utf-8", "replace")
