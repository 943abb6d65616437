"""Standard errors of means over rows in contexts, by hand and against the bootstrap; sign flips."""

import math
import tracemalloc

import numpy as np
import pytest

from convrec.base.statistics import FLIPS, FLIPS_AT_ONCE, bootstrap, compute_standard_error, sign_flip


def test_the_error_of_independent_rows_is_the_textbook_one() -> None:
    # mean 0.5, sample variance 4/3 * 0.25 = 1/3, over 4 rows: sqrt(1/12)
    error = compute_standard_error(np.array([[1.0], [0.0], [1.0], [0.0]]), range(4))
    assert error == pytest.approx([math.sqrt(1 / 12)])


def test_rows_of_one_context_count_as_one() -> None:
    # "a" has three rows of 0.5, "b" one of 0.2: mean 1.7 / 4 = 0.425, residuals 1.5 - 3 * 0.425 = 0.225 and -0.225;
    # sqrt(2 / 1 * 2 * 0.225^2) / 4 = 2 * 0.225 / 4 = 0.1125
    values = np.array([[0.5], [0.5], [0.5], [0.2]])
    assert compute_standard_error(values, ["a", "a", "a", "b"]) == pytest.approx([0.1125])
    assert math.isnan(compute_standard_error(values, ["a"] * 4)[0])


def test_the_error_of_the_mean_agrees_with_the_bootstrap() -> None:
    rng = np.random.default_rng(0)
    contexts = np.repeat(np.arange(200), rng.integers(1, 6, 200))
    values = rng.normal(size=(200, 2))[contexts] + rng.normal(size=(len(contexts), 2))
    # 1000 resamples: the bootstrap's own error is about 1 / sqrt(2000) = 2 %
    assert compute_standard_error(values, contexts.tolist()) == pytest.approx(
        bootstrap(values, contexts.tolist(), seed=0)[1], rel=0.08
    )


def test_sign_flips_in_blocks_equal_those_drawn_at_once() -> None:
    """With odd numbers of contexts, a row of signs ends within the four numbers that numpy draws together."""
    assert FLIPS % FLIPS_AT_ONCE > 0
    for seed, contexts in ((0, 7), (1, 13), (2, 301)):
        values = np.random.default_rng(seed).normal(0.1, 1.0, size=(contexts, 3))
        signs = 2.0 * np.random.default_rng(seed).integers(0, 2, size=(FLIPS, contexts), dtype=np.int8) - 1.0
        num_as_far = (np.abs(signs @ values) >= np.abs(values.sum(axis=0)) - 1e-9).sum(axis=0)
        assert sign_flip(values, range(contexts), seed).tolist() == ((1 + num_as_far) / (1 + FLIPS)).tolist()


def test_smaller_blocks_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0.1, 1.0, size=(300, 3))
    contexts = rng.integers(0, 97, size=300).tolist()

    def compute() -> list[np.ndarray]:
        return [*bootstrap(values, contexts, 1), sign_flip(values, contexts, 1)]

    expected = compute()
    monkeypatch.setattr("convrec.base.statistics.CELLS_AT_ONCE", 1000)
    for array, expected_array in zip(compute(), expected, strict=True):
        np.testing.assert_allclose(array, expected_array, rtol=1e-12)


def test_sign_flips_need_little_memory() -> None:
    """All signs of 2,000 contexts would take 9,999 x 2,000 x 8 bytes = 160 MB, those of 400 flips twice 6.4 MB."""
    tracemalloc.start()
    sign_flip(np.ones((2000, 2)), range(2000), seed=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
