"""URLs of servers that credentials are for: which are admissible, and when two name the same server."""

import re
from typing import Final
from urllib.parse import urlsplit

from corral.wire.errors import InvalidRequest

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# Parsers of URLs disagree about these, and what one refuses another drops.
_UNFIT: Final = re.compile(r"[\x00-\x20\x7f\\]")


def check_url(url: str, path: str) -> None:
    """Refuse what is not the address of a server.

    Raises:
        InvalidRequest: it is no http or https URL, or holds a user's name or password. The message has the
            path of the field and nothing of the URL, which may hold a secret in the wrong place.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest(f"{path}: not a valid URL") from None
    if _UNFIT.search(url) or parts.scheme.lower() not in _DEFAULT_PORTS or not host:
        raise InvalidRequest(f"{path}: must be an http or https URL")
    if "@" in parts.netloc:
        raise InvalidRequest(f"{path}: must not contain credentials")


def normalised(url: str) -> str:
    """The form in which the URLs of one server are equal (contract section 15.3).

    Scheme and host are lower-cased; a default port, one trailing slash of the path and the fragment, which is
    never sent, are left out. Path, query, sub-domain and any other port tell servers apart.

    Raises:
        ValueError: it is not a URL that `check_url` admits.
    """
    parts = urlsplit(url)
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = "" if parts.port in (None, _DEFAULT_PORTS.get(scheme)) else f":{parts.port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{host}{port}{parts.path.removesuffix('/')}{query}"
