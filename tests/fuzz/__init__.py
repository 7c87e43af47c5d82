"""Requests that nobody would write: made from the OpenAPI document by schemathesis, sent to a real server."""
