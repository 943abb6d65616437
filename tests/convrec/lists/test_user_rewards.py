"""A rank reward of the user's own is found, tried out before a run, and its source is known."""

import sys
from pathlib import Path

import pytest

from convrec.base.errors import UserError
from convrec.lists import user_rewards
from convrec.lists.user_rewards import check, is_user_reward, load, own_sources, sources
from convrec.titles.item import Item

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

def takes_one(relevance):
    return relevance

def greedy(relevance, items):
    items.clear()
    relevance[:] = [9] * len(relevance)
    return relevance

not_a_function = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """my_rewards.py on the path, imported anew by each test."""
    (tmp_path / "my_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    load.cache_clear()
    return tmp_path / "my_rewards.py"


def test_its_form():
    others = ["exp_inf", "", "my_rewards:", ":f", "my-rewards:f", "a..b:f", "a:b:c", "a.b:f.g", "a:1"]
    assert [name for name in ("my_rewards:halves", "a.b_2.c:_f", *others) if is_user_reward(name)] == [
        "my_rewards:halves",
        "a.b_2.c:_f",
    ]


def test_it_gets_relevance_and_items_and_gives_floats():
    items = [Item("Heat", 1995), None]
    assert load("my_rewards:halves")([1, 0], items) == [0.5, 0.0]
    returns = load("my_rewards:titles")([1, 0], items)
    assert returns == [4.0, -1.0]
    assert all(type(value) is float for value in returns)


def test_what_it_does_to_its_arguments_stays_with_it():
    relevance, items = [0, 1], [None, Item("Heat", 1995)]
    assert load("my_rewards:greedy")(relevance, items) == [9.0, 9.0]
    assert (relevance, items) == ([0, 1], [None, Item("Heat", 1995)])


@pytest.mark.parametrize("name", ["my_rewards:halves", "my_rewards:titles"])
@pytest.mark.parametrize("num_items", [1, 2, 20])
def test_a_good_one_passes(name, num_items):
    check(name, num_items)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:f", "importing no_such_module raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("my_rewards.deeper:f", "importing my_rewards.deeper raised ModuleNotFoundError"),
        ("my_rewards:halfs", "has no function halfs; did you mean halves?"),
        ("my_rewards:not_a_function", "has no function not_a_function"),
        ("my_rewards:short", "it returned 3 numbers for 4 ranks: one a rank (for a list without a line)"),
        ("my_rewards:infinite", "it returned [inf, inf, inf, inf]: every number must be finite (for a list of hits)"),
        ("my_rewards:text", "it returned 'no numbers', not a list of numbers"),
        ("my_rewards:nothing", "it returned None, not a list of numbers"),
        ("my_rewards:raises_without_hits", "for a list without a line it raised ZeroDivisionError"),
        ("my_rewards:takes_one", "it raised TypeError: takes_one() takes 1 positional argument but 2 were given"),
    ],
)
def test_a_bad_one_is_told_with_its_name_and_what_is_wrong(name, said):
    with pytest.raises(UserError) as error:
        check(name, 4)
    assert str(error.value).startswith(f"convrec.reward={name}: ")
    assert said in str(error.value)


def test_what_fails_on_import_is_told(module):
    module.write_text("import nothing_of_this_name\n")
    with pytest.raises(UserError, match=r"importing my_rewards raised .*nothing_of_this_name.*PYTHONPATH"):
        check("my_rewards:f", 4)


def test_it_is_watched_in_training_too():
    with pytest.raises(UserError, match="every number must be finite"):
        load("my_rewards:infinite")([1], [None])


def test_its_source_is_its_file_or_its_top_level_package(module, tmp_path):
    package = tmp_path / "my_package" / "inner"
    package.mkdir(parents=True)
    (package / "rewards.py").write_text(MODULE)
    assert sources("my_rewards") == own_sources("my_rewards:halves") == [module]
    assert sources("my_package.inner.rewards") == [tmp_path / "my_package"]  # without __init__.py
    (tmp_path / "my_package" / "__init__.py").write_text("")
    assert own_sources("my_package.inner.rewards:halves") == [tmp_path / "my_package"]
    assert sources("no_such_module") == []


@pytest.mark.parametrize("name", ["math:prod", "json.decoder:f", "numpy:mean", "convrec.lists.rank_rewards:dcg"])
def test_what_every_node_has_is_not_the_users_own(name):
    assert own_sources(name) == []
    assert name.startswith("math") or sources(user_rewards.parse_module_name(name))
