"""Processes that hold many connections take the descriptors that their system lets them have."""

import resource
import subprocess
import sys

import pytest

SAYS = (
    "import resource; from corral.cli.descriptors import take_descriptors; take_descriptors();"
    "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
)


def after(*limits: str) -> tuple[int, int]:
    """The soft and the hard limit of a process that began with others."""
    shell = "; ".join(f"ulimit {limit}" for limit in limits)
    done = subprocess.run(
        ["sh", "-c", f'{shell}; exec "$0" -c "$1"', sys.executable, SAYS],
        capture_output=True,
        text=True,
        check=True,
    )
    soft, hard = done.stdout.split()
    return int(soft), int(hard)


def test_a_low_soft_limit_is_raised_as_far_as_the_hard_one_allows() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("this machine allows too few to tell")
    assert after("-Sn 256", "-Hn 4096") == (4096, 4096)


def test_a_limit_that_may_not_be_raised_stays() -> None:
    assert after("-n 256") == (256, 256)
