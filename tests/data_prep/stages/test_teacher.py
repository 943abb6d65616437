"""Warnings about the teacher's lists."""

from data_prep.stages.teacher import warn_about_frequent_items

TITLES = ["It", "Heat", "Alien"]


def test_items_in_most_lists_are_named_with_their_count() -> None:
    (warning,) = warn_about_frequent_items({0: 71, 1: 51, 2: 50}, 100, TITLES)
    assert warning.startswith("2 items are in more than half of the lists, It in 71 of 100")


def test_few_lists_or_items_in_half_of_them_raise_no_warning() -> None:
    assert warn_about_frequent_items({0: 99}, 99, TITLES) == []
    assert warn_about_frequent_items({0: 50}, 100, TITLES) == []
