"""HTML as readable text: headings, lists, links with their addresses. Pure, and linear in the page's length.

Pages come from anybody, so nothing here may take time out of proportion: each search either finds its end and
goes on behind it, or is not made again. (Python's own parser has had inputs on which it took hours.)
"""

import html
import re
from typing import Final
from urllib.parse import urljoin, urlsplit

import msgspec

_TAG: Final = re.compile(r"(/?)([a-zA-Z][a-zA-Z0-9:-]{0,60})")
_QUOTE_OR_END: Final = re.compile("[>\"']")
_ATTRIBUTE: Final = re.compile(
    r"""([^\s"'<>/=]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+)))?""",
)
_SPACES: Final = re.compile(r"\s+")
_ATTRIBUTES: Final = 8192
_LONGEST_LINK: Final = 2048

_UNREAD: Final = frozenset({"script", "style", "template", "svg", "noscript", "iframe", "object", "select"})
"""Elements whose content is no text to read."""
_LITERAL: Final = frozenset({"textarea", "title"})
"""Elements within which there are no others."""
# fmt: off
_BLOCKS: Final = frozenset((
    "address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt",
    "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html", "main", "nav",
    "ol", "p", "pre", "section", "summary", "table", "tbody", "thead", "tfoot", "tr", "ul",
))
# fmt: on
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}


class PageText(msgspec.Struct, frozen=True):
    """What there is to read on a page. cut: whether there is more."""

    title: str
    text: str
    cut: bool


def page_text(page: str, url: str, *, most: int) -> PageText:
    """The text of an HTML page at `url`, up to about `most` characters. Links are absolute."""
    reader = _Reader(page, url, most)
    reader.read()
    text = _spaced("".join(reader.pieces))
    return PageText(_SPACES.sub(" ", reader.title).strip(), text[:most], reader.full or len(text) > most)


class _Reader:
    def __init__(self, page: str, url: str, most: int) -> None:
        self.pieces: list[str] = []
        self.title = ""
        self.full = False
        self._page = page
        self._base = url
        self._most = most
        self._length = 0
        self._newlines = 0
        self._preformatted = 0
        self._links: list[str | None] = []
        self._endless: set[str] = set()
        """What was looked for in vain: it is nowhere in the rest of the page."""

    def read(self) -> None:
        """Read the page, to its end or until there is enough."""
        at = 0
        while at < len(self._page) and not self.full:
            start = self._page.find("<", at)
            if start < 0:
                start = len(self._page)
            if start > at:
                self._text(self._page[at:start])
            at = start if start == len(self._page) else self._markup(start)

    def _markup(self, start: int) -> int:
        """Read what begins with the `<` at `start`; where it ends."""
        page = self._page
        if page.startswith("<!--", start):
            return self._behind("-->", start + 4)
        if page.startswith(("<!", "<?"), start):
            return self._behind(">", start + 2)
        tag = _TAG.match(page, start + 1)
        if tag is None:
            self._text("<")
            return start + 1
        closing, name = tag[1] == "/", tag[2].lower()
        end = self._tag_end(tag.end())
        attributes = page[tag.end() : end - 1]
        if closing:
            self._close(name)
        elif name in _UNREAD:
            return self._element_end(name, end)[1]
        elif name in _LITERAL:
            inner, behind = self._element_end(name, end)
            if name == "title":
                self.title = self.title or _unescaped(page[end:inner][:1000])
            else:
                self._text(page[end:inner])
            return behind
        else:
            self._open(name, attributes)
        return end

    def _behind(self, mark: str, at: int) -> int:
        found = self._page.find(mark, at)
        return len(self._page) if found < 0 else found + len(mark)

    def _tag_end(self, at: int) -> int:
        """Behind the `>` of a tag; quotes may hold others."""
        while (found := _QUOTE_OR_END.search(self._page, at)) is not None:
            if found[0] == ">":
                return found.end()
            at = found.end()
            if found[0] not in self._endless:
                closed = self._page.find(found[0], at)
                if closed < 0:
                    self._endless.add(found[0])
                else:
                    at = closed + 1
        return len(self._page) + 1

    def _element_end(self, name: str, at: int) -> tuple[int, int]:
        """Where an element's content ends, and where its end tag does; an element without one is empty."""
        if name in self._endless:
            return at, at
        found = re.compile(f"</{name}", re.IGNORECASE).search(self._page, at)
        if found is None:
            self._endless.add(name)
            return at, at
        return found.start(), self._behind(">", found.end())

    def _text(self, raw: str) -> None:
        text = _unescaped(raw[: self._most * 2])
        if not self._preformatted:
            text = _SPACES.sub(" ", text)
            if text[:1] == " " and (not self.pieces or self.pieces[-1][-1:] in (" ", "\n")):
                text = text[1:]
        self._add(text)

    def _add(self, text: str) -> None:
        if text:
            self.pieces.append(text)
            self._length += len(text)
            ending = text[len(text.rstrip()) :] if text[-1].isspace() else ""
            self._newlines = ending.count("\n") + (self._newlines if ending == text else 0)
            # White space goes in the end, so there is a little more than what was asked for.
            self.full = self._length > self._most * 2

    def _break(self, lines: int = 1) -> None:
        """See that so many lines end here."""
        if self.pieces:
            self._add("\n" * (lines - self._newlines))

    def _open(self, name: str, attributes: str) -> None:
        if name in _HEADINGS:
            self._break(2)
            self._add(_HEADINGS[name])
        elif name == "li":
            self._break()
            self._add("- ")
        elif name in ("td", "th"):
            self._add(" | " if self.pieces and not self._newlines else "| ")
        elif name == "br":
            self._break()
        elif name == "a":
            self._links.append(self._link(_attribute(attributes, "href")))
            if self._links[-1] is not None:
                self._add("[")
        elif name == "img" and (shown := _attribute(attributes, "alt")):
            self._text(f"[Image: {shown}] ")
        elif name == "base" and (base := _attribute(attributes, "href")):
            self._base = _joined(self._base, base) or self._base
        elif name in _BLOCKS:
            self._break(2 if name == "p" else 1)
            self._preformatted += name == "pre"

    def _close(self, name: str) -> None:
        if name == "a" and self._links:
            link = self._links.pop()
            if link is not None:
                self._add(f"]({link})")
        elif name in _HEADINGS:
            self._break(2)
        elif name in _BLOCKS or name == "li":
            self._break(2 if name == "p" else 1)
            self._preformatted -= name == "pre" and self._preformatted > 0

    def _link(self, href: str | None) -> str | None:
        """The address of a link that leads to a page elsewhere, or None."""
        if not href or href.lstrip().startswith("#"):
            return None
        return _joined(self._base, href)


def _spaced(text: str) -> str:
    """The text without white space at the ends of lines, and with one empty line in a row at most."""
    lines: list[str] = []
    for line in text.split("\n"):
        kept = line.rstrip()
        if kept or (lines and lines[-1]):
            lines.append(kept)
    return "\n".join(lines).strip("\n")


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a character's number with thousands of digits
        return text


def _attribute(attributes: str, name: str) -> str | None:
    for found in _ATTRIBUTE.finditer(attributes[:_ATTRIBUTES]):
        if found[1].lower() == name:
            return _unescaped(found[2] or found[3] or found[4] or "")
    return None


def _joined(base: str, href: str) -> str | None:
    try:
        url = urljoin(base, "".join(href.split()))
        scheme = urlsplit(url).scheme
    except ValueError:
        return None
    return url if scheme in ("http", "https") and len(url) <= _LONGEST_LINK else None
