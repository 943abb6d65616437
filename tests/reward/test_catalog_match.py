import json
import subprocess
import sys
import threading
from math import log2
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convrec.base.kinds import PositiveNumber
from convrec.lists.rank_rewards import RANK_REWARDS, RankReward
from convrec.titles.matching import MATCHERS, Identity, Matcher, Matching, cache_per_instance
from reward import catalog_match
from reward.catalog_match import compute_score
from tests.user_errors import refuses

FILMS = {"Heat": 1995, "Up": 2009, "The Matrix": 1999, "Jaws": 1975, "Alien": 1979}
TRUTH = {"groundtruth": [["The Matrix", "1999"], ["Jaws", "1975"]], "seen": ["Up"]}


@pytest.fixture(scope="module")
def catalog_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("catalog") / "catalog.parquet"
    pq.write_table(pa.table({"title": list(FILMS), "year": list(FILMS.values())}), path)
    return str(path)


def score(text, catalog_path, truth=TRUTH, extra_info=None, **settings):
    return compute_score("reddit", text, truth, extra_info, catalog_path=catalog_path, **{"num_items": 5, **settings})


def test_one_response_by_hand(catalog_path):
    text = "Here you go:\n\nHeat (1995)\nThe Matirx (1999)\nUp (2009)\nNowhere (2001)\nJaws (1975)\n"
    # Six lines, N = 5: the preamble is rank 1; rank 3 hits; rank 4 was seen, rank 5 is foreign, Jaws overflows.
    assert score(text, catalog_path) == {
        "score": 1 / log2(4),
        "dcg": 0.5,
        "recall": 0.5,
        "ndcg": 0.5 / (1 + 1 / log2(3)),
        "hits": 1,
        "catalog_hit_ratio": 3 / 5,
        "num_items": 6,
        "unparsable": 1,
        "duplicates": 0,
        "overflow": 1,
        "underflow": 0,
        "rank_returns": [0.0, 0.0, 1.0, 0.0, 0.0],
        "relevance": [0, 0, 1, 0, 0],
    }


def test_a_film_that_is_wanted_twice_counts_once(catalog_path):
    truth = {"groundtruth": [["The Matrix", "1999"], ["Matrix", "1999"], ["Jaws", ""]], "seen": []}
    scored = score("The Matrix (1999)\nNowhere (2001)", catalog_path, truth)
    assert (scored["hits"], scored["recall"], scored["ndcg"]) == (1, 0.5, 1 / (1 + 1 / log2(3)))


def test_lines_without_a_year_earn_where_matching_is_lenient(catalog_path):
    text = "Here you go:\nJaws\nMatrix (1999)"
    for matching, relevance, unparsable in (("fuzzy", [0, 0, 1, 0, 0], 2), ("lenient", [0, 1, 1, 0, 0], 1)):
        scored = score(text, catalog_path, matching=matching)
        assert (scored["relevance"], scored["unparsable"]) == (relevance, unparsable)


def test_parts_of_the_reward_stand_beside_their_weighted_sum(catalog_path):
    text = "Heat (1995)\nThe Matrix (1999)\nHeat (1995)\nNowhere (2001)"
    plain = score(text, catalog_path, reward="log_decay")
    alone = score(text, catalog_path, reward="log_decay", rewards={"relevance": 1})
    assert alone.pop("part_returns") == [plain["rank_returns"]]
    assert alone == plain
    scored = score(text, catalog_path, rewards={"repeats": -0.5, "relevance": 2, "out_of_catalog": -1})
    assert scored["part_returns"] == [[0, 0, 1, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0]]
    assert scored["rank_returns"] == [0, 2, -0.5, -1, 0]
    assert scored["score"] == plain["score"]
    assert "part_returns" not in score(text, catalog_path, extra_info={"validate": True}, rewards={"repeats": -1})


def test_mentions_of_all_spellings_count_for_their_item(tmp_path):
    path = tmp_path / "catalog.parquet"
    titles = ["Amélie", "Heat", "Amelie"]  # the last is the first in another spelling
    pq.write_table(pa.table({"title": titles, "year": [2001, 1995, 2001], "mentions": [1, 20, 39]}), path)
    scored = compute_score(
        "d",
        "Amelie (2001)\nHeat (1995)",
        {"groundtruth": [], "seen": []},
        catalog_path=str(path),
        num_items=2,
        rewards={"popularity": 1.0},
    )
    assert scored["rank_returns"] == [1.0, 0.5]


def test_the_returns_shape_changes_the_returns_and_not_the_score(catalog_path):
    text = "The Matrix (1999)\nHeat (1995)\nJaws (1975)"
    # rel 1, 0, 1: log_decay 1 + 0.5, 0.5, 0.5; exp_gamma 2: 1 + 1/4, 1/2, 1.
    log_decay, exp_gamma = (
        score(text, catalog_path, reward="log_decay"),
        score(text, catalog_path, reward="exp_gamma", gamma=2),
    )
    assert log_decay["rank_returns"] == [1.5, 0.5, 0.5, 0.0, 0.0]
    assert exp_gamma["rank_returns"] == [1.25, 0.5, 1.0, 0.0, 0.0]
    assert log_decay["score"] == exp_gamma["score"] == 1.5
    assert log_decay["underflow"] == 1


def test_validation_returns_scalars_only(catalog_path):
    scored = score("Heat (1995)", catalog_path, extra_info={"validate": True})
    assert "rank_returns" not in scored
    assert all(type(value) in (int, float) for value in scored.values())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.lists(st.sampled_from([f"{t} ({y})" for t, y in FILMS.items()] + ["", "junk", "1. Heat"])).map("\n".join),
    ),
    shape=st.sampled_from(["exp_inf", "log_decay"]),
    matching=st.sampled_from(["fuzzy", "exact", "reference"]),
)
def test_every_response_has_the_same_keys_and_types(catalog_path, text, shape, matching):
    scored, plain = score(text, catalog_path, reward=shape, matching=matching), score("Heat (1995)", catalog_path)
    assert list(scored) == list(plain)
    for name, value in scored.items():
        if name in ("rank_returns", "relevance"):
            assert len(value) == 5
            assert all(type(entry) in (int, float) for entry in value)
        else:
            assert type(value) is type(plain[name]), name
    assert 0 <= scored["ndcg"] <= 1 + 1e-12
    assert 0 <= scored["recall"] <= 1
    assert 0 <= scored["catalog_hit_ratio"] <= 1


@pytest.mark.parametrize("text", ["", "\n \n", "no item at all", "(1999)" * 50, "\0\ud800"])
def test_bad_model_output_is_data(catalog_path, text):
    assert score(text, catalog_path)["score"] == 0.0


def test_json_and_numpy_ground_truth_are_read_alike(catalog_path):
    arrays = {
        "groundtruth": np.array([np.array(["The Matrix", "1999"], object), np.array(["Jaws", "1975"], object)]),
        "seen": np.array(["Up"], object),
    }
    text = "The Matrix (1999)\nUp (2009)"
    assert (
        score(text, catalog_path) == score(text, catalog_path, json.dumps(TRUTH)) == score(text, catalog_path, arrays)
    )
    assert score(text, catalog_path, {"groundtruth": TRUTH["groundtruth"], "seen": None})["hits"] == 1


def test_no_ground_truth_scores_zero(catalog_path):
    scored = score("Heat (1995)", catalog_path, {"groundtruth": [], "seen": []})
    assert (scored["score"], scored["recall"], scored["ndcg"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("truth", [[["Heat", "1995"]], {"seen": []}, "[]"])
def test_malformed_ground_truth_is_a_bug_and_raises(catalog_path, truth):
    with refuses("reward.invalid-ground-truth"):
        score("Heat (1995)", catalog_path, truth)


@pytest.mark.parametrize("wrong", [{"reward": "linear"}, {"matching": "loose"}, {"catalog_path": "nowhere.parquet"}])
def test_wrong_settings_raise(catalog_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong.values()))):
        compute_score("reddit", "Heat (1995)", TRUTH, **{"catalog_path": catalog_path, **wrong})


@pytest.fixture
def user_reward(tmp_path, monkeypatch):
    """A module that returns relevance / 2 and, where there is an item, adds its year."""
    (tmp_path / "catalog_match_rewards.py").write_text(
        "def years(relevance, items):\n"
        "    return [rel / 2 + (item.year if item else 0) for rel, item in zip(relevance, items, strict=True)]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "catalog_match_rewards:years"


def test_user_rank_reward_gets_relevance_and_items_of_all_ranks(catalog_path, user_reward):
    text = "Heat (1995)\nno item\nJaws (1975)"
    scored = score(text, catalog_path, reward=user_reward)
    assert scored["rank_returns"] == [1995.0, 0.0, 1975.5, 0.0, 0.0]
    assert scored == score(text, catalog_path) | {"rank_returns": scored["rank_returns"]}  # nothing else depends on it
    longer = score("Heat (1995)\n" * 7, catalog_path, reward=user_reward)
    assert longer["rank_returns"] == [1995.0] * 5
    packed = score(text, catalog_path, reward=user_reward, matching="reference")
    assert packed["rank_returns"] == [1995.0, 1975.5, 0.0, 0.0, 0.0]
    lines = score("Heat (1995)|Jaws (1975)", catalog_path, reward=user_reward, delimiter="|")
    assert lines["rank_returns"] == [1995.0, 1975.5, 0.0, 0.0, 0.0]


def test_a_registered_rank_reward_is_known_by_its_entry_alone(catalog_path, monkeypatch):
    def capped(relevance_N, cap):
        return [min(rel, cap) for rel in relevance_N]

    entry = RankReward(capped, "r_k = min(rel_k, cap)", {"cap": PositiveNumber})
    monkeypatch.setitem(RANK_REWARDS, "capped", entry)
    scored = score("The Matrix (1999)", catalog_path, reward="capped", cap=0.25, gamma=None)
    assert scored["rank_returns"] == [0.25, 0.0, 0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="capped needs cap, a positive number, not None"):
        score("The Matrix (1999)", catalog_path, reward="capped")


def test_a_registered_matching_is_known_by_its_entry_alone(catalog_path, monkeypatch):
    class Initials(Matcher):
        """Titles are equal when their first letters are."""

        @cache_per_instance
        def identify_written(self, title, year):
            row = next((row for row, known in enumerate(self.catalog.titles) if known[0] == title[0]), -1)
            return Identity(row, title[0])

    monkeypatch.setitem(MATCHERS, "initials", Matching(Initials, "first letters"))
    assert score("Tiny (1999)", catalog_path, matching="initials")["relevance"] == [1, 0, 0, 0, 0]
    assert score("Tiny (1999)", catalog_path)["relevance"] == [0] * 5


def test_delimiter_separates_ranks(catalog_path):
    assert score("Heat (1995)|The Matrix (1999)|", catalog_path, delimiter="|")["relevance"] == [0, 1, 0, 0, 0]


def test_reference_matching_packs_what_it_can_parse_to_the_left(catalog_path):
    text = "Enjoy!\nThe Matrix (1999)"
    assert score(text, catalog_path)["rank_returns"] == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert score(text, catalog_path, matching="reference")["rank_returns"] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_threads_build_the_matcher_once(catalog_path, monkeypatch):
    built, results = [], []
    load = catalog_match.load_catalog
    monkeypatch.setattr(catalog_match, "load_catalog", lambda path: built.append(path) or load(path))
    run = lambda: results.append(score("The Matrix (1999)", catalog_path, fuzzy_cutoff=93)["score"])  # noqa: E731
    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1.0] * 8
    assert len(built) == 1


def test_light_modules_import_no_heavy_ones():
    code = (
        "import sys, reward.catalog_match, convrec.lists.metrics\n"
        "print([name for name in ('torch', 'pandas', 'pyarrow', 'verl', 'ray', 'transformers') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


def test_validation_scores_rows_of_a_conversation_together(catalog_path):
    other = {"groundtruth": [["Heat", "1995"]], "seen": []}
    text = "Heat (1995)\nThe Matrix (1999)\nUp (2009)\nJaws (1975)\nAlien (1979)"
    apart = [score(text, catalog_path, truth, {"validate": True}) for truth in (TRUTH, other)]
    together = score(text, catalog_path, {"rows": [TRUTH, other]}, {"validate": True})
    assert together.pop("num_rows") == 2
    assert together == pytest.approx({name: (apart[0][name] + apart[1][name]) / 2 for name in apart[0]})
    assert together["recall"] == 1.0


def test_recorded_reference_rewards_from_text_to_returns(golden, tmp_path):
    recorded = golden("parse_match_cases")
    titles, years = zip(*recorded["catalog"], strict=True)
    pq.write_table(pa.table({"title": titles, "year": years}), tmp_path / "catalog.parquet")
    for case in recorded["reward_cases"]:
        if "raises" in case["output"]:
            continue
        truth = {"groundtruth": case["groundtruth_with_release_year"], "seen": case["seen_titles"]}
        for shape, expected in case["output"].items():
            scored = score(
                case["completion"], str(tmp_path / "catalog.parquet"), truth, matching="reference", reward=shape,
                num_items=case["rec_num"], **case["kwargs"],
            )  # fmt: skip
            assert scored["rank_returns"] == pytest.approx(expected), case["name"]
