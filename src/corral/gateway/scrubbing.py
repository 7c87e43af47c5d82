"""Takes secrets out of what other machines answer, before anybody sees it."""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

import httpx2
import msgspec

from corral.wire.gateway import HttpResponse
from corral.wire.secret import MASK, Secret

BODY_CHARACTERS: Final = 4096
"""Most that is shown of an answer's body."""

_SHORTEST: Final = 6
_LONG: Final = 12  # bytes; of less, too little is left in base64 to know it by
# What token endpoints answer with. Longer than the body that is shown, so that no half of a token stays.
_FIELDS: Final = re.compile(
    r'("(?:access_token|refresh_token|id_token|client_secret|token)"\s*:\s*")(?:[^"\\]|\\.)*("|$)'
)


class Scrubber:
    """Masks a set of secrets wherever they stand: as they are, in JSON, in a URL, in hexadecimal, in base64
    alone or in the midst of something.
    """

    def __init__(self, secrets: Iterable[Secret]) -> None:
        forms = set[str]()
        for secret in secrets:
            text = secret.reveal()
            # A secret of a few characters would mask half of every text, and hides nothing worth it.
            if len(text) >= _SHORTEST:
                forms.update(_forms(text))
        self.__forms = sorted(forms, key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text without the secrets."""
        for form in self.__forms:
            text = text.replace(form, MASK)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value without the secrets, in its keys too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(one) for one in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {
                self.text(str(key)): self.value(one) for key, one in cast("dict[Any, Any]", value).items()
            }
        return value

    def response(self, response: httpx2.Response) -> HttpResponse:
        """What may be shown of an answer that has been read."""
        body = _FIELDS.sub(rf"\g<1>{MASK}\g<2>", self.text(response.text))
        return HttpResponse(
            status_code=response.status_code,
            content_type=self.text(response.headers.get("content-type", ""))[:255],
            body=body[:BODY_CHARACTERS],
            body_truncated=len(body) > BODY_CHARACTERS,
        )


def _forms(text: str) -> Iterator[str]:
    raw = text.encode()
    yield from (text, quote(text, safe=""), quote_plus(text), msgspec.json.encode(text).decode()[1:-1])
    yield from (json.dumps(text)[1:-1], raw.hex(), raw.hex().upper())
    for encode in (b64encode, urlsafe_b64encode):
        yield encode(raw).decode().rstrip("=")
        for before in (1, 2) if len(raw) >= _LONG else ():
            # What stands before it moves it by one or two bytes. The first and the last characters depend on
            # its neighbours too; without them the rest is known all the same.
            whole = encode(bytes(before) + raw).decode()
            yield whole[4:-4]
        if len(raw) >= _LONG:
            yield encode(raw).decode()[:-4]
