"""Content blocks: what a message or a tool result is made of (contract section 10.2).

Each block encodes back to the form in which the API echoes it: optional fields that were absent come out as
null. ``redacted`` blocks are the server's alone, so no client model knows them.
"""

from typing import Annotated, Literal

from msgspec import Meta

from corral.wire.fields import Id, LongToken, Request

Some = Annotated[str, Meta(min_length=1)]


class TextBlock(Request, tag="text"):
    """Text."""

    text: Some


class ResultTextBlock(Request, tag="text"):
    """Text in a tool result, which may be empty: a command may well print nothing."""

    text: str


class Base64Image(Request, tag="base64"):
    """An image given inline."""

    media_type: Some
    data: Some


class Base64Document(Request, tag="base64"):
    """A document given inline (PDF)."""

    media_type: Some
    data: Some


class PlainTextDocument(Request, tag="text"):
    """A document of plain text."""

    media_type: Literal["text/plain"]
    data: Some


class UrlSource(Request, tag="url"):
    """Something that the model's provider fetches by URL."""

    url: LongToken


class FileSource(Request, tag="file"):
    """A file of the Files API, by id."""

    file_id: Id


class ImageBlock(Request, tag="image"):
    """An image."""

    source: Base64Image | UrlSource | FileSource


class DocumentBlock(Request, tag="document"):
    """A document, with an optional title and context for the model."""

    source: Base64Document | PlainTextDocument | UrlSource | FileSource
    title: str | None = None
    context: str | None = None


class Citations(Request):
    """Whether the model may cite a search result."""

    enabled: bool


class SearchResultBlock(Request, tag="search_result"):
    """One search result, in tool results only."""

    source: Some
    title: Some
    content: list[TextBlock]
    citations: Citations


MessageBlock = TextBlock | ImageBlock | DocumentBlock
ResultBlock = ResultTextBlock | ImageBlock | DocumentBlock | SearchResultBlock
