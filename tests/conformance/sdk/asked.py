"""A test's request, taken apart so that real values can take the place of those the test made up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, quote, urlencode

import msgspec


@dataclass
class Asked:
    """One request on its way from a test to the server. Rules change it in place.

    ``params`` are the values of the route's path parameters by name; ``body`` is the decoded JSON object, or
    None where the request carries none. ``key`` is the credential to send; None means the API key.
    """

    method: str
    template: str
    params: dict[str, str]
    query: list[tuple[str, str]]
    headers: dict[str, str]
    content: bytes = b""
    body: dict[str, Any] | None = None
    key: str | None = None
    written_over: bool = field(default=False)

    @classmethod
    def read(
        cls,
        method: str,
        template: str,
        params: Mapping[str, str],
        query: str,
        headers: Mapping[str, str],
        content: bytes,
    ) -> "Asked":
        """The request with these parts; ``query`` is the raw query string, header names are lower case."""
        body: dict[str, Any] | None = None
        if content.strip() and headers.get("content-type", "").startswith("application/json"):
            body = cast("dict[str, Any]", msgspec.json.decode(content))
        pairs = parse_qsl(query, keep_blank_values=True)
        return cls(method, template, dict(params), pairs, dict(headers), content, body)

    @property
    def path(self) -> str:
        """The path to ask the server for."""
        return self.template.format_map({name: quote(value, safe="") for name, value in self.params.items()})

    @property
    def query_string(self) -> str:
        """The query to ask the server for; empty if there is none."""
        return urlencode(self.query)

    @property
    def payload(self) -> bytes:
        """The bytes of the body to send."""
        if self.written_over or self.body is None:
            return self.content
        return msgspec.json.encode(self.body)

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON body, to be changed; an empty one is begun where there is none."""
        if self.body is None:
            self.body = {}
        return self.body

    def has(self, name: str) -> bool:
        """Whether the query has a parameter of this name."""
        return any(key == name for key, _ in self.query)

    def first(self, name: str) -> str | None:
        """The first value of a query parameter, None where it is absent."""
        return next((value for key, value in self.query if key == name), None)

    def put(self, name: str, value: str) -> None:
        """Give a query parameter another value; it must be there: a test's request never gains one."""
        if not self.has(name):
            raise KeyError(name)
        self.query = [(key, value if key == name else old) for key, old in self.query]

    def drop(self, *names: str) -> None:
        """Take parameters out of the query."""
        self.query = [(key, value) for key, value in self.query if key not in names]

    def write_over(self, content: bytes, content_type: str) -> None:
        """Replace the whole body by bytes of another type, e.g. a multipart form."""
        self.content, self.written_over = content, True
        self.headers["content-type"] = content_type
