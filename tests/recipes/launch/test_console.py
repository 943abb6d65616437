"""The warnings of a run about its first step."""

from pathlib import Path

import pytest

from convrec.training.trackers import tracking
from recipes.launch.console import Console, progress


@pytest.mark.parametrize(("shares", "warnings"), [((0.95, 1.0), 1), ((0.5, 1.0), 0)])
def test_a_run_warns_once_about_truncated_lists(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], shares: tuple[float, ...], warnings: int
) -> None:
    with progress(Console(), tmp_path, 3, "Rank-GRPO", {"shown": "x"}):
        for step, share in enumerate(shares, 1):
            for follow in tracking.FOLLOWERS:
                follow(step, {"rank_grpo/truncated": share, "shown": 1.0})
    assert capfd.readouterr().err.count("were cut at MAX_RESPONSE_LENGTH") == warnings
