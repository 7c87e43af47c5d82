"""Settings of what models can do are checked before a server starts."""

import pytest

from corral.settings import Inference


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ({"context": 32_768, "images": False}, []),
        ({"contxt": 1}, ["capabilities"]),
        ({"context": 0}, ["capabilities"]),
    ],
)
def test_a_line_that_is_none_is_told(line: dict[str, object], wrong: list[str]) -> None:
    given = Inference(base_url="http://127.0.0.1:1", capabilities={"llama": line})
    assert [key for key, _ in given.conflicts()] == wrong
