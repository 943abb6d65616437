"""Custom rank rewards: loading, the check before a run, and finding their source."""

import sys
from pathlib import Path

import pytest

from convrec.lists import user_rewards
from convrec.lists.user_rewards import check, find_own_sources, is_user_reward, load, sources
from convrec.titles.item import Item
from tests.user_errors import refuses

MODULE = """
import math

def halves(relevance, items):
    return [rel / 2 for rel in relevance]

def titles(relevance, items):
    return [len(item.title) if item else -1 for item in items]

def short(relevance, items):
    return relevance[1:]

def infinite(relevance, items):
    return [math.inf if rel else 0.0 for rel in relevance]

def text(relevance, items):
    return "no numbers"

def nothing(relevance, items):
    pass

def raises_without_hits(relevance, items):
    return [rel / sum(relevance) for rel in relevance]

def divides_hits(relevance, items):
    return [rel / sum(relevance) if any(items) else 0.0 for rel in relevance]

def needs_every_title(relevance, items):
    return [len(item.title) for item in items] if any(items) else [0] * len(items)

def _hidden(relevance, items):
    return relevance

def takes_one(relevance):
    return relevance

calls = []

def notes(relevance, items):
    calls.append((relevance, items))
    return relevance

def greedy(relevance, items):
    items.clear()
    relevance[:] = [9] * len(relevance)
    return relevance

not_a_function = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """my_rewards.py on the path, imported afresh by each test."""
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    load.cache_clear()
    return tmp_path / "my_rewards.py"


def test_only_module_and_function_names_are_custom_rewards():
    others = ["exp_inf", "", "my_rewards:", ":f", "my-rewards:f", "a..b:f", "a:b:c", "a.b:f.g", "a:1"]
    assert [name for name in ("my_rewards:halves", "a.b_2.c:_f", *others) if is_user_reward(name)] == [
        "my_rewards:halves",
        "a.b_2.c:_f",
    ]


def test_a_custom_reward_gets_relevance_and_items_and_returns_floats():
    items = [Item("Heat", 1995), None]
    assert load("my_rewards:halves")([1, 0], items) == [0.5, 0.0]
    returns = load("my_rewards:titles")([1, 0], items)
    assert returns == [4.0, -1.0]
    assert all(type(value) is float for value in returns)


def test_a_custom_reward_cannot_change_its_callers_lists():
    relevance, items = [0, 1], [None, Item("Heat", 1995)]
    assert load("my_rewards:greedy")(relevance, items) == [9.0, 9.0]
    assert (relevance, items) == ([0, 1], [None, Item("Heat", 1995)])


@pytest.mark.parametrize("name", ["my_rewards:halves", "my_rewards:titles"])
@pytest.mark.parametrize("num_items", [1, 2, 20])
def test_a_valid_custom_reward_passes(name, num_items):
    check(name, num_items)


def test_the_check_tries_lists_without_and_with_lines_and_hits():
    check("my_rewards:notes", 3)
    relevances, items = zip(*sys.modules["my_rewards"].calls, strict=True)
    assert relevances == ([0, 0, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0])
    is_item = [[isinstance(item, Item) for item in list_] for list_ in items]
    assert is_item == [[False] * 3, [True] * 3, [True] * 3, [False, True, False]]
    assert len(set(items[1])) == 3


@pytest.mark.parametrize(
    ("name", "code", "values"),
    [
        ("no_such_module:f", "reward.import", ["ModuleNotFoundError: No module named 'no_such_module'"]),
        ("my_rewards.deeper:f", "reward.import", ["my_rewards.deeper", "ModuleNotFoundError"]),
        ("my_rewards:halfs", "reward.no-function", ["halfs", "did you mean halves?"]),
        ("my_rewards:not_a_function", "reward.no-function", ["not_a_function"]),
        ("my_rewards:short", "reward.wrong-length", ["3 numbers", "4 ranks", "(for a list without lines)"]),
        ("my_rewards:infinite", "reward.not-finite", ["[inf, inf, inf, inf]", "(for a list of hits only)"]),
        ("my_rewards:text", "reward.not-numbers", ["'no numbers'"]),
        ("my_rewards:nothing", "reward.not-numbers", ["None"]),
        ("my_rewards:raises_without_hits", "reward.raised", ["a list without lines", "ZeroDivisionError"]),
        ("my_rewards:divides_hits", "reward.raised", ["a list without hits", "ZeroDivisionError"]),
        ("my_rewards:needs_every_title", "reward.raised", ["a list with a hit at every other rank", "AttributeError"]),
        ("my_rewards:takes_one", "reward.raised", ["TypeError", "takes 1 positional argument but 2 were given"]),
    ],
)
def test_an_invalid_custom_reward_is_refused(name, code, values):
    with refuses(code, *values) as refused:
        check(name, 4)
    assert str(refused.value).startswith(f"convrec.reward={name}: ")


def test_private_functions_are_not_suggested():
    with refuses("reward.no-function", "did you mean halves?") as refused:
        load("my_rewards:_halves")
    assert "_hidden" not in str(refused.value)
    with refuses("reward.no-function", "needs_every_title") as refused:
        load("my_rewards:hidden")
    assert "_hidden" not in str(refused.value)


def test_a_failing_import_is_refused(module):
    module.write_text("import nothing_of_this_name\n")
    with refuses("reward.import", "my_rewards", "nothing_of_this_name", "PYTHONPATH"):
        check("my_rewards:f", 4)


def test_returns_are_also_checked_in_training():
    with refuses("reward.not-finite", "my_rewards:infinite"):
        load("my_rewards:infinite")([1], [None])


def test_the_source_of_a_reward_is_its_file_or_top_level_package(module, tmp_path):
    package = tmp_path / "my_package" / "inner"
    package.mkdir(parents=True)
    (package / "rewards.py").write_text(MODULE)
    assert sources("my_rewards") == find_own_sources("my_rewards:halves") == [module]
    assert sources("my_package.inner.rewards") == [tmp_path / "my_package"]  # without __init__.py
    (tmp_path / "my_package" / "__init__.py").write_text("")
    assert find_own_sources("my_package.inner.rewards:halves") == [tmp_path / "my_package"]
    assert sources("no_such_module") == []


@pytest.mark.parametrize(
    "name", ["sys:intern", "math:prod", "json.decoder:f", "numpy:mean", "convrec.lists.rank_rewards:dcg"]
)
def test_installed_and_project_modules_are_not_own_sources(name):
    assert find_own_sources(name) == []
    assert name.startswith(("sys", "math")) or sources(user_rewards.parse_module_name(name))
