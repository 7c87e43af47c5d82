"""How a sandbox gets out: the gateway's door and certificate in it, and the variables that lead there.

Everything a sandbox may reach is behind that proxy, and everything under TLS is shown with the deployment's
own certificate; so that authority is the only one that programs inside have to know.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from corral.hands.sandbox.inside.forward import PORT
from corral.hands.sandbox.provider import Egress

SOCKET_PATH: Final = "/run/corral/egress.sock"
CERTIFICATE_PATH: Final = "/run/corral/ca.pem"
# The lists of authorities that programs read without being told to, where a system has them.
_SYSTEM_BUNDLES: Final = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_CERTIFICATE_VARIABLES: Final[tuple[str, ...]] = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "DENO_CERT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)
_PROXY: Final = f"http://127.0.0.1:{PORT}"
_NOT_PROXIED: Final = "localhost,127.0.0.1,::1"


def variables() -> dict[str, str]:
    """The variables by which programs find the proxy and the certificate."""
    found = dict[str, str]()
    for name in _CERTIFICATE_VARIABLES:
        found[name] = CERTIFICATE_PATH
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        found[name] = found[name.upper()] = _PROXY
    found["no_proxy"] = found["NO_PROXY"] = _NOT_PROXIED
    found["NODE_USE_ENV_PROXY"] = "1"
    return found


def arguments(egress: Egress) -> list[str]:
    """What shows the door to a sandbox, for bwrap."""
    return ["--ro-bind", str(egress.socket), SOCKET_PATH]


def files(egress: Egress) -> Iterator[tuple[str, bytes]]:
    """The certificate, at every place where programs look for those that they may trust."""
    content = egress.certificate.encode("ascii")
    yield CERTIFICATE_PATH, content
    for path in _SYSTEM_BUNDLES:
        if Path(path).is_file() and not Path(path).is_symlink():
            yield path, content
