"""When two URLs name the same MCP server (contract section 15.3), and which are no server's."""

import pytest

from corral.wire.errors import InvalidRequest
from corral.wire.server_urls import check_url, normalised


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://mcp.example.com/mcp", "HTTPS://MCP.Example.COM/mcp"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com:443/mcp"),
        ("http://mcp.example.com/mcp", "http://mcp.example.com:80/mcp"),
        ("https://mcp.example.com", "https://mcp.example.com/"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp/"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com:/mcp"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp#top"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp?"),
        ("http://[::1]:80/mcp", "http://[::1]/mcp"),
    ],
)
def test_they_name_the_same_server(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://mcp.example.com/mcp", "https://mcp.example.com/MCP"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp/v2"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com/mcp//"),
        ("https://mcp.example.com/mcp", "https://example.com/mcp"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com:8443/mcp"),
        ("https://mcp.example.com/mcp", "https://mcp.example.com:80/mcp"),
        ("https://mcp.example.com/mcp", "http://mcp.example.com/mcp"),
        ("https://mcp.example.com/mcp?team=a", "https://mcp.example.com/mcp?team=b"),
        ("http://[::1]:8080/", "http://[::1:8080]/"),
    ],
)
def test_they_name_different_servers(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_normalising_twice_changes_nothing_more() -> None:
    once = normalised("HTTPS://MCP.Example.com:443/a/?q=1#x")
    assert once == "https://mcp.example.com/a?q=1"
    assert normalised(once) == once


@pytest.mark.parametrize("url", ["https://mcp.example.com", "http://10.0.0.8:3000/mcp?x=1", "https://[::1]/"])
def test_addresses_of_servers_are_admitted(url: str) -> None:
    check_url(url, "u")


@pytest.mark.parametrize(
    "url",
    [
        "mcp.example.com",
        "ftp://mcp.example.com",
        "https://",
        "https:///mcp",
        "https://mcp.example.com:port/",
        "https://mcp.example.com:99999/",
        "https://[::1/",
        "https://user:hunter2@mcp.example.com/",
        "https://@mcp.example.com/",
        "https://mcp.example.com\\@evil.example/hunter2",
        "https://mcp.example.com/hunter2\n",
        " https://mcp.example.com/hunter2",
    ],
)
def test_what_is_no_servers_address_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^auth\.mcp_server_url: ") as caught:
        check_url(url, "auth.mcp_server_url")
    assert "hunter2" not in caught.value.message
