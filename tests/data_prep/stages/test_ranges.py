"""Ranges of rows in several processes. With the stages: test_adjust.py."""

import ctypes

from data_prep.stages.ranges import make_ranges, open_process_pool
from tests.user_errors import refuses


def test_ranges_cover_every_row_once():
    assert make_ranges(5, 2) == [(0, 2), (2, 4), (4, 5)]
    assert make_ranges(0, 2) == []


def test_pool_keeps_order_across_maps_and_reports_a_dead_process():
    with open_process_pool(2) as map_ranges:
        for total in (11, 2):  # several ranges in the processes, one range in this
            expected = [range(start, stop) for start, stop in make_ranges(total, 2)]
            assert list(map_ranges(range, make_ranges(total, 2))) == expected
        with refuses("demonstrations.lost-process", "--workers 2"):
            list(map_ranges(ctypes.string_at, [(2**40, 2)] * 2))  # reads where nothing is
