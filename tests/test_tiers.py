"""The tiers of the tests: a file that has moved must not fall out of its tier in silence."""

from tests.conftest import CONTRACT, ROOT


def test_every_file_of_the_contract_tier_is_there() -> None:
    assert [name for name in CONTRACT if not (ROOT / name).is_file()] == []
