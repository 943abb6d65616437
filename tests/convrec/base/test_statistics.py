"""The error of a mean over rows that come in contexts, by hand and against the bootstrap."""

import math
import tracemalloc

import numpy as np
import pytest

from convrec.base.statistics import FLIPS, FLIPS_AT_ONCE, bootstrap, error_of_mean, sign_flip


def test_the_error_of_independent_rows_is_the_textbook_one() -> None:
    # mean 0.5, sample variance 4/3 * 0.25 = 1/3, over 4 rows: sqrt(1/12)
    error = error_of_mean(np.array([[1.0], [0.0], [1.0], [0.0]]), range(4))
    assert error == pytest.approx([math.sqrt(1 / 12)])


def test_rows_of_one_context_count_as_one() -> None:
    # "a" has three rows of 0.5, "b" one of 0.2: mean 1.7 / 4 = 0.425, residuals 1.5 - 3 * 0.425 = 0.225 and -0.225;
    # sqrt(2 / 1 * 2 * 0.225^2) / 4 = 2 * 0.225 / 4 = 0.1125
    values = np.array([[0.5], [0.5], [0.5], [0.2]])
    assert error_of_mean(values, ["a", "a", "a", "b"]) == pytest.approx([0.1125])
    assert math.isnan(error_of_mean(values, ["a"] * 4)[0])


def test_it_is_what_the_bootstrap_estimates() -> None:
    rng = np.random.default_rng(0)
    contexts = np.repeat(np.arange(200), rng.integers(1, 6, 200))
    values = rng.normal(size=(200, 2))[contexts] + rng.normal(size=(len(contexts), 2))
    # 1000 resamples: the bootstrap's own error is about 1 / sqrt(2000) = 2 %
    assert error_of_mean(values, contexts.tolist()) == pytest.approx(
        bootstrap(values, contexts.tolist(), seed=0)[1], rel=0.08
    )


def test_sign_flips_in_blocks_are_those_drawn_at_once() -> None:
    """Odd numbers of contexts, so that a row of signs ends within the four numbers that numpy draws together."""
    assert FLIPS % FLIPS_AT_ONCE > 0
    for seed, contexts in ((0, 7), (1, 13), (2, 301)):
        values = np.random.default_rng(seed).normal(0.1, 1.0, size=(contexts, 3))
        signs = 2.0 * np.random.default_rng(seed).integers(0, 2, size=(FLIPS, contexts), dtype=np.int8) - 1.0
        as_far = (np.abs(signs @ values) >= np.abs(values.sum(axis=0)) - 1e-9).sum(axis=0)
        assert sign_flip(values, range(contexts), seed).tolist() == ((1 + as_far) / (1 + FLIPS)).tolist()


def test_numbers_drawn_in_smaller_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values, contexts = rng.normal(0.1, 1.0, size=(300, 3)), rng.integers(0, 97, size=300).tolist()

    def figures() -> list[np.ndarray]:
        return [*bootstrap(values, contexts, 1), sign_flip(values, contexts, 1)]

    at_once = figures()
    monkeypatch.setattr("convrec.base.statistics.CELLS_AT_ONCE", 1000)
    for found, wanted in zip(figures(), at_once, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_sign_flips_need_little_memory() -> None:
    """All signs of 2,000 contexts at once would be 9,999 x 2,000 x 8 bytes = 160 MB; of 400 flips 6.4 MB, twice."""
    tracemalloc.start()
    sign_flip(np.ones((2000, 2)), range(2000), seed=0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6
