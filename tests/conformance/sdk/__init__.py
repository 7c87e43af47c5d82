"""The official SDK's own API tests against a live server (`make conformance`).

A proxy stands between the two and makes what the tests name; see `proxy.py`. Nothing here reads a database
or imports the server: any server that speaks the API can be judged.
"""
