"""Curves go through their values, errors are drawn to scale, lines differ."""

import math

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from convrec.report.charts import Chart
from convrec.report.drawing import draw_chart, make_line_key, render_svg


def make_axes(chart: Chart) -> Axes:
    axis = Figure().subplots()
    draw_chart(axis, chart)
    return axis


def test_curve_keeps_its_values_and_long_ones_are_thinned() -> None:
    (line,) = make_axes(Chart("Validation", "NDCG", {"a": {5: 0.3, 0: 0.2, 10: 0.25}})).lines
    assert line.get_xydata().tolist() == [[0, 0.2], [5, 0.3], [10, 0.25]]
    long = {step: math.sin(step) for step in range(8001)}
    (line,) = make_axes(Chart("Loss", "nats", {"a": long})).lines
    assert len(line.get_xydata()) <= 402
    assert line.get_xydata()[-1].tolist() == [8000, math.sin(8000)]


def test_a_small_change_is_drawn_small() -> None:
    """The axis of NDCG covers at least 0.02; a change from 0.371 to 0.373 is a tenth of that."""
    low, high = make_axes(Chart("NDCG", "NDCG", {"a": {0: 0.371, 10: 0.373}}, span=0.02)).get_ylim()
    assert low < 0.371 < 0.373 < high
    assert 0.02 <= high - low < 0.03
    low, high = make_axes(Chart("NDCG", "NDCG", {"a": {0: 0.001, 10: 0.002}}, span=0.02)).get_ylim()
    assert (low, high >= 0.02) == (0, True)  # without negative values the axis does not go below 0


def test_an_error_is_a_band_of_one_standard_error_to_each_side() -> None:
    axis = make_axes(Chart("NDCG", "NDCG", {"a": {0: 0.2, 10: 0.3}}, {"a": {0: 0.1, 10: 0.05}}))
    ((band,),) = (collection.get_paths() for collection in axis.collections)
    for step, low, high in ((0, 0.1, 0.3), (10, 0.25, 0.35)):
        values = band.vertices[band.vertices[:, 0] == step, 1]
        assert (values.min(), values.max()) == pytest.approx((low, high))
    assert axis.get_ylabel() == "NDCG ± standard error"
    one = make_axes(Chart("NDCG", "NDCG", {"a": {3: 0.2}}, {"a": {3: 0.1}}))
    assert one.collections[0].get_segments()[0] == pytest.approx(np.array([[3, 0.1], [3, 0.3]]))


def test_the_step_axis_begins_at_0_and_ends_at_the_last_step() -> None:
    chart = Chart("Loss", "nats", {"a": {step: 1.0 / step for step in range(1, 104)}})
    assert list(make_axes(chart).get_xticks()) == [0, 20, 40, 60, 80, 103]
    longer = Chart("Loss", "nats", {"a": {1: 1.0}}, last_step=400)
    assert max(make_axes(longer).get_xticks()) == 400


def test_the_lines_of_many_runs_look_different() -> None:
    assert len({tuple(make_line_key(index, False).items()) for index in range(36)}) == 36


def test_markup_in_labels_is_shown_as_text() -> None:
    svg = render_svg(Chart("Loss", "nats $x$ <b>", {"$a": {0: 1.0, 1: 2.0}}))
    assert ">nats $x$ &lt;b&gt;</text>" in svg
