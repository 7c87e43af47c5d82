"""Structured logs with redaction; later traces and metrics. Knows nothing of the rest of the house."""
