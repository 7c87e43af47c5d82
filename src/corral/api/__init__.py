"""Routes per resource, authentication, errors, SSE. No rules and no SQL live here."""
