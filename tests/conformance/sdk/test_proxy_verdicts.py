"""Which tests count: ids of the suite's tests, and the exclusions."""

from pathlib import Path

import pytest

from tests.conformance.sdk.families import FAMILIES, chosen_files
from tests.conformance.sdk.verdicts import Exclusion, Test, Verdict, outgrown, read_exclusions, split

ROOT = "tests/api_resources/beta/"
LISTED = Test.of(f"{ROOT}test_vaults.py::TestVaults::test_streaming_response_list[strict]", ROOT)
FULL = Test.of(f"{ROOT}test_vaults.py::TestVaults::test_method_list_with_all_params[aiohttp]", ROOT)
LOCAL = Test.of(f"{ROOT}test_vaults.py::TestAsyncVaults::test_path_params_list[loose]", ROOT)


def test_a_test_knows_its_operation_and_family() -> None:
    assert (LISTED.operation, LISTED.family, LISTED.local) == ("list", "vaults", False)
    assert (FULL.operation, LOCAL.operation, LOCAL.local) == ("list_with_all_params", "list", True)


def test_a_test_is_found_again_in_the_report() -> None:
    told = "tests.api_resources.beta.test_vaults.TestVaults.test_streaming_response_list[strict]"
    assert LISTED.reported_as == told


def test_an_excluded_operation_leaves_the_tests_that_ask_no_server() -> None:
    exclusion = Exclusion("test_vaults.py", frozenset({"list"}), "why")

    chosen, excluded, unused = split([LISTED, FULL, LOCAL], [exclusion])

    assert chosen == [FULL, LOCAL]
    assert excluded[LISTED.node_id].why == "why"
    assert unused == []


def test_an_excluded_file_leaves_nothing() -> None:
    chosen, excluded, _ = split([LISTED, LOCAL], [Exclusion("test_vaults.py", frozenset(), "why")])

    assert chosen == []
    assert len(excluded) == 2


def test_an_exclusion_that_covers_nothing_is_told() -> None:
    stale = Exclusion("test_vaults.py", frozenset({"no_more"}), "why")

    assert split([LISTED], [stale])[2] == [stale]


def test_an_operation_that_passes_by_now_has_outgrown_its_exclusion() -> None:
    exclusion = Exclusion("test_vaults.py", frozenset(), "why")
    passed, failed = Verdict("passed", ""), Verdict("failed", "")
    verdicts = {LISTED.node_id: passed, FULL.node_id: failed, LOCAL.node_id: passed}

    assert outgrown([LISTED, FULL, LOCAL], verdicts, [exclusion]) == [(exclusion, "list")]


def test_an_exclusion_without_a_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "exclusions.toml"
    path.write_text('[[exclude]]\nfiles = ["test_vaults.py"]\nreason = " "\n')

    with pytest.raises(ValueError, match="a reason"):
        read_exclusions(path)


def test_every_exclusion_that_stands_is_readable_and_in_a_family() -> None:
    counted = chosen_files([])
    for exclusion in read_exclusions():
        folders = {exclusion.file, exclusion.file.partition("/")[0], exclusion.file.rpartition("/")[0]}
        assert folders & set(counted), exclusion.file


def test_families_can_be_chosen() -> None:
    assert chosen_files(["agents", "models"]) == [*FAMILIES["agents"], *FAMILIES["models"]]
