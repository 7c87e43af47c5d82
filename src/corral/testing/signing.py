"""Signatures of thinking blocks: given back changed, unsigned or for another model, a block does not verify.

The key is fixed, so that signatures outlive a restart of the scripted model; they protect nothing but tests.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

_KEY = b"corral scripted model"
_MODEL_BYTES = 8


def sign(kind: str, model: str, text: str) -> str:
    """The signature of `text` in a block of type `kind` written by `model`."""
    proof = hmac.new(_KEY, f"{kind}\0{model}\0{text}".encode(), hashlib.sha256).digest()
    return base64.b64encode(_model_mark(model) + proof).decode()


def fault(kind: str, model: str, text: str, signature: str) -> str | None:
    """Why `signature` does not verify, as a reason to show; None when it does."""
    if hmac.compare_digest(signature.encode(), sign(kind, model, text).encode()):
        return None
    try:
        mark = base64.b64decode(signature, validate=True)[:_MODEL_BYTES]
    except (binascii.Error, ValueError):
        return f"invalid signature in {kind} block"
    if len(mark) == _MODEL_BYTES and mark != _model_mark(model):
        return f"invalid signature in {kind} block: it was signed for another model"
    return f"invalid signature in {kind} block: the block was changed"


def redact(model: str, text: str) -> str:
    """The `data` of a redacted thinking block, which carries its own signature."""
    hidden = base64.b64encode(text.encode()).decode()
    return f"{hidden}.{sign('redacted_thinking', model, hidden)}"


def redaction_fault(model: str, data: str) -> str | None:
    """Why the `data` of a redacted thinking block does not verify; None when it does."""
    hidden, _, signature = data.partition(".")
    return fault("redacted_thinking", model, hidden, signature)


def _model_mark(model: str) -> bytes:
    return hashlib.sha256(model.encode()).digest()[:_MODEL_BYTES]
