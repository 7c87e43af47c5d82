"""Settings of the web tools: what is missing or can never work is told before anything starts."""

import pytest

from corral.settings import Gateway


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (Gateway(), []),
        (Gateway(search="provider"), []),
        (Gateway(search="endpoint"), ["search_endpoint"]),
        (Gateway(search="endpoint", search_endpoint="https://search.corp.example/search"), []),
        (Gateway(search="endpoint", search_endpoint="http://10.1.2.3:8080/search"), []),
        (Gateway(search_endpoint="search.corp.example"), ["search_endpoint"]),
        (Gateway(search_endpoint="ftp://search.corp.example/"), ["search_endpoint"]),
        (Gateway(search_endpoint="https://user:pass@search.corp.example/"), ["search_endpoint"]),
        (Gateway(search_endpoint="https://search.corp.example/?key=x"), ["search_endpoint"]),
        (Gateway(search_endpoint="http://169.254.169.254/"), ["search_endpoint"]),
        (Gateway(search_endpoint="http://[/"), ["search_endpoint"]),
    ],
)
def test_what_is_wrong_with_a_search_endpoint_is_told(given: Gateway, wrong: list[str]) -> None:
    assert [key for key, _ in given.conflicts()] == wrong
