"""Ranges of rows in several processes. With the stages: test_adjust.py."""

import ctypes

import pytest

from convrec.base.errors import UserError
from data_prep.stages.ranges import make_ranges, processes


def test_ranges_cover_every_row_once():
    assert make_ranges(5, 2) == [(0, 2), (2, 4), (4, 5)]
    assert make_ranges(0, 2) == []


def test_pool_keeps_order_across_maps_and_reports_a_dead_process():
    with processes(2) as map_ranges:
        for total in (11, 2):  # several ranges in the processes, one range in this
            expected = [range(*one) for one in make_ranges(total, 2)]
            assert list(map_ranges(range, make_ranges(total, 2))) == expected
        with pytest.raises(UserError, match="one of 2 processes has ended, maybe for memory: give fewer --workers"):
            list(map_ranges(ctypes.string_at, [(2**40, 2)] * 2))  # reads where nothing is
