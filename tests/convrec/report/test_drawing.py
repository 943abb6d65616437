"""Curves go through their values, errors are drawn to scale, lines differ, the PNG has every panel."""

import math
import re
from pathlib import Path

import matplotlib.image
import pytest

from convrec.report.charts import Chart, GainChart
from convrec.report.drawing import LINES, TEXT, chart_svg, gains_svg, line_key, write_png

Points = list[tuple[float, float]]


def paths(svg: str, style: str) -> list[Points]:
    """The points of the paths whose style has this in it, in the drawing's units: y grows downwards."""
    found = re.findall(r'<path d="([^"]*)"(?: clip-path="[^"]*")? style="([^"]*)"', svg)
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", points)]
        for points, look in found
        if style in look
    ]


def curve(svg: str) -> Points:
    return paths(svg, f"fill: none; stroke: {LINES[0]}; stroke-width: 1.6")[0]


def ticks(svg: str, anchor: str) -> dict[float, float]:
    """The axis: value -> place, of labels centred under the steps or at the end of the values' lines."""
    found = re.findall(rf'text-anchor: {anchor};[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(\d[\d.]*)</text>', svg)
    return {float(text): float(x if anchor == "middle" else y) for x, y, text in found}


def test_a_curve_is_drawn_through_its_values() -> None:
    svg = chart_svg(Chart("Validation", "NDCG", {"a": {0: 0.2, 5: 0.3, 10: 0.25}}))
    (x0, y0), (x5, y5), (x10, y10) = curve(svg)
    steps = ticks(svg, "middle")
    assert (steps[0], steps[10]) == pytest.approx((x0, x10), abs=0.2)
    assert x5 == pytest.approx((x0 + x10) / 2, abs=0.2)
    assert (y0 - y10) / (y0 - y5) == pytest.approx(0.5, abs=0.01)
    values = ticks(svg, "end")
    a_unit = (values[0.3] - values[0.2]) / 0.1
    assert y5 - y0 == pytest.approx(0.1 * a_unit, abs=0.2)


def test_a_small_change_is_drawn_small() -> None:
    """NDCG's axis covers 0.02 at the least: 0.371 to 0.373 is at most a tenth of it, of 180 units of height."""
    svg = chart_svg(Chart("NDCG", "NDCG", {"a": {0: 0.371, 10: 0.373}}, span=0.02))
    (_, first), (_, last) = curve(svg)
    assert 10 < first - last < 18
    zeros = chart_svg(Chart("NDCG", "NDCG", {"a": {0: 0.001, 10: 0.002}}, span=0.02))
    assert "−" not in zeros  # an axis of what is not negative does not go below 0


def test_an_error_is_a_band_of_one_standard_error_to_each_side() -> None:
    chart = Chart("NDCG", "NDCG", {"a": {0: 0.2, 10: 0.3}}, {"a": {0: 0.1, 10: 0.05}})
    svg = chart_svg(chart)
    (_, y0), (_, y10) = curve(svg)
    height = y0 - y10  # of 0.1
    # moved down by the drawing's height, 216; markers have arcs, and the marks of the axes no z
    (band,) = [d for d in re.findall(r'<path id="[^"]*" d="([^"]*)"', svg) if "C" not in d and "z" in d]
    places = [(float(x), float(y) + 216) for x, y in re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", band)]
    ends = sorted(y for x, y in places if x == min(x for x, _ in places))
    assert (ends[0], ends[-1]) == pytest.approx((y0 - height, y0 + height), abs=0.3)
    ends = sorted(y for x, y in places if x == max(x for x, _ in places))
    assert (ends[0], ends[-1]) == pytest.approx((y10 - height / 2, y10 + height / 2), abs=0.3)
    assert "NDCG ± standard error" in svg
    one = chart_svg(Chart("NDCG", "NDCG", {"a": {3: 0.2}}, {"a": {3: 0.1}}))
    ((top, bottom),) = paths(one, f"stroke: {LINES[0]}; stroke-opacity: 0.6")
    assert top[0] == bottom[0]


def test_the_axis_of_steps_begins_at_0_and_ends_at_the_last_one() -> None:
    chart = Chart("Loss", "nats", {"a": {step: 1.0 / step for step in range(1, 104)}})
    assert list(ticks(chart_svg(chart), "middle")) == [0, 20, 40, 60, 80, 103]
    longer = Chart("Loss", "nats", {"a": {1: 1.0}}, last_step=400)
    assert max(ticks(chart_svg(longer), "middle")) == 400


def test_a_long_run_is_drawn_with_few_points_and_its_last_one() -> None:
    line = {step: math.sin(step) for step in range(8001)}
    points = curve(chart_svg(Chart("Loss", "nats", {"a": line})))
    assert len(points) <= 402
    assert points[-1][0] == pytest.approx(curve(chart_svg(Chart("L", "n", {"a": {0: 0, 8000: 0}})))[-1][0], abs=1)


def test_the_lines_of_many_runs_look_different() -> None:
    assert len({tuple(line_key(index, False).items()) for index in range(36)}) == 36


def test_text_is_text() -> None:
    svg = chart_svg(Chart("Loss", "nats $x$ <b>", {"$a": {0: 1.0, 1: 2.0}}))
    assert ">nats $x$ &lt;b&gt;</text>" in svg


def test_a_gain_is_drawn_with_one_and_two_standard_errors_beside_0() -> None:
    gains = {"NDCG@20": {"mean": 0.02, "se": 0.01}, "R" * 40: {"mean": -0.01, "se": math.nan}}
    svg = gains_svg(GainChart("B minus A", gains))
    (two,), (one,) = paths(svg, "stroke-width: 1.2"), paths(svg, "stroke-width: 4")
    (zero,) = paths(svg, f"fill: none; stroke: {TEXT}")
    left, right = two[0][0], two[1][0]
    assert (one[1][0] - one[0][0]) / (right - left) == pytest.approx(0.5, abs=0.01)
    assert left == pytest.approx(zero[0][0], abs=0.2)  # 0.02 - 2 * 0.01
    assert f"{'R' * 27}…" in svg


def test_the_picture_has_a_panel_for_each_chart_and_names_the_runs_below(tmp_path: Path) -> None:
    def size(runs: int) -> tuple[int, int]:
        lines = {f"run {number}": {0: 0.1, 3: 0.2} for number in range(runs)}
        ranks = Chart("Return per rank", "mean return", {"rank 1": {1: 0.2}}, ordered=True)
        write_png(tmp_path / "plots" / "a.png", [ranks, *[Chart("NDCG", "NDCG", lines)] * 4])
        height, width, _ = matplotlib.image.imread(tmp_path / "plots" / "a.png").shape
        return width, height

    assert size(1) == (round(3 * 4.8 * 130), round(2 * 3.0 * 130))  # 5 charts in 2 rows of 3
    assert size(14) == (round(3 * 4.8 * 130), round((2 * 3.0 + 5 * 0.22) * 130))  # 5 lines of 3 names
    assert [file.name for file in (tmp_path / "plots").iterdir()] == ["a.png"]
