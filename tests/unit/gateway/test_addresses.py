"""Where agents may be connected to: forms of hosts, addresses that are refused, what an operator may name."""

from collections.abc import Sequence

import pytest

from corral.gateway.addresses import NotReachable, Reach, Resolver
from corral.wire.addresses import BadHost, Internal, parse_host

PUBLIC = "93.184.215.14"


def answering(*addresses: str) -> Resolver:
    """A resolver that gives these addresses for every name."""

    async def resolve(name: str, port: int) -> Sequence[str]:
        if not addresses:
            raise OSError("no such name")
        return addresses

    return resolve


async def refusal(host: str, *, internal: Sequence[str] = (), resolver: Resolver | None = None) -> str:
    with pytest.raises(NotReachable) as raised:
        await Reach(internal, resolver=resolver or answering(PUBLIC)).resolve(host, 443)
    return str(raised.value)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "198.18.0.1",
        "240.0.0.1",
        "[::1]",
        "[fc00::1]",
        "[fec0::1]",
        "[2001:db8::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:10.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::a00:1]",
        "[64:ff9b:1::1]",
    ],
)
async def test_an_address_that_is_not_of_the_internet_is_refused_and_the_reason_names_the_setting(
    host: str,
) -> None:
    assert "gateway.internal does not name it" in await refusal(host)


@pytest.mark.parametrize(
    "host",
    ["0177.0.0.1", "2130706433", "0x7f000001", "127.1", "0x7f.0.0.1", "127.0.0.01", "1.2.3.4.5", "300.1.1.1"],
)
async def test_other_ways_to_write_an_ipv4_address_are_refused_whatever_they_mean(host: str) -> None:
    assert "four decimal parts" in await refusal(host, internal=["0.0.0.0/0", "::/0"])


@pytest.mark.parametrize(
    "host",
    ["", ".", "a b", "-a.example", "a..b", "exa\u006dple.\u0441om", "a" * 64 + ".example", "[::1%eth0]"],
)
async def test_what_is_no_plain_host_is_refused(host: str) -> None:
    await refusal(host, internal=["0.0.0.0/0", "::/0"])


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[64:ff9b::a9fe:a9fe]",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "[fe80::1]",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "0.0.0.0",
        "[::]",
        "224.0.0.1",
        "255.255.255.255",
        "[2002:7f00:1::]",
        "[2001:0:7f00:1::]",
    ],
)
async def test_a_metadata_or_meaningless_address_is_refused_even_if_every_range_is_named(host: str) -> None:
    await refusal(host, internal=["0.0.0.0/0", "::/0"])


async def test_a_named_host_that_leads_to_a_metadata_address_is_refused() -> None:
    await refusal("meta.corp.example", internal=["*.corp.example"], resolver=answering("169.254.169.254"))


@pytest.mark.parametrize(
    ("host", "internal"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.0/8"),
        ("[::ffff:127.0.0.1]", "127.0.0.0/8"),
        ("[::1]", "::1"),
        ("git.corp.example", "git.corp.example"),
        ("GIT.corp.example.", "git.corp.example"),
        ("git.corp.example", "*.corp.example"),
        ("a.b.corp.example", "*.corp.example"),
        ("anything.example", "10.0.0.0/8"),
    ],
)
async def test_an_internal_host_is_reached_when_it_or_its_range_is_named(host: str, internal: str) -> None:
    reach = Reach([internal], resolver=answering("10.1.2.3"))
    assert await reach.resolve(host, 443)


@pytest.mark.parametrize(
    "host", ["corp.example", "corp.example.org", "evilcorp.example", "git.corp.example.evil"]
)
async def test_a_wildcard_covers_what_is_below_it_alone(host: str) -> None:
    await refusal(host, internal=["*.corp.example"], resolver=answering("10.1.2.3"))


async def test_an_environments_hosts_come_on_top() -> None:
    reach = Reach(["10.0.0.1"])
    assert await reach.plus(["10.0.0.2"]).resolve("10.0.0.2", 443)
    assert await reach.plus(["10.0.0.2"]).resolve("10.0.0.1", 443)
    with pytest.raises(NotReachable):
        await reach.resolve("10.0.0.2", 443)


async def test_of_a_names_addresses_those_of_the_internet_are_pinned_and_the_others_left_out() -> None:
    pinned = await Reach(resolver=answering("10.0.0.1", PUBLIC, "::1")).resolve("mixed.example", 8443)
    assert pinned == [("mixed.example", PUBLIC, 8443)]


async def test_a_name_is_asked_for_once_so_that_it_cannot_mean_another_address_later() -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]

    async def rebinding(name: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    reach = Reach(resolver=rebinding)
    assert [pin.address for pin in await reach.resolve("rebind.example", 443)] == [PUBLIC]
    with pytest.raises(NotReachable):
        await reach.resolve("rebind.example", 443)


async def test_a_name_that_does_not_resolve_is_told_from_one_that_is_refused() -> None:
    with pytest.raises(NotReachable) as unknown:
        await Reach(resolver=answering()).resolve("nowhere.example", 443)
    with pytest.raises(NotReachable) as refused:
        await Reach(resolver=answering("10.0.0.1")).resolve("inside.example", 443)
    assert (unknown.value.refused, refused.value.refused) == (False, True)


@pytest.mark.parametrize(
    "entry",
    ["169.254.169.254", "fd00:ec2::254", "10.0.0.1/8", "10.0.0.0/40", "http://a.example", "*", "a b", "*.1"],
)
def test_an_entry_that_names_nothing_reachable_is_refused(entry: str) -> None:
    with pytest.raises(BadHost):
        Internal([entry])


def test_a_host_is_brought_into_its_plain_form() -> None:
    assert str(parse_host("[::FFFF:8.8.8.8]")) == "8.8.8.8"
    assert parse_host("Example.COM.") == "example.com"
