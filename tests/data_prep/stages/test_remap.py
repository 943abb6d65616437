"""Remap by hand and in blocks, and items that may not be recommended."""

import json
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from convrec.titles.catalog import Catalog
from convrec.titles.item import Item
from convrec.titles.matching import Matcher
from data_prep.stages import remap
from data_prep.stages.embeddings import TFIDF_SVD, TfidfSvd, check_embedding, make_embedder, normalise_rows
from data_prep.stages.remap import (
    compute_matched_scores,
    compute_queries,
    compute_rank_weights,
    find_writable_rows,
    iter_scores,
    select_top,
)
from recipes.tiny_model import make_tiny_model
from tests.user_errors import refuses

# catalog items 0, 1, 2 and item 3, which only the teacher knows
ITEMS_ID = np.array([[1, 0], [0, 1], [0.6, 0.8], [0.8, 0.6]], np.float32)


def test_scores_by_hand():
    # The teacher names item 3 at rank 1 and item 1 at rank 4: p = (0, 1/sqrt(4), 0, 1/sqrt(1)) = (0, .5, 0, 1).
    # p S by catalog item, S from the vectors above:
    #   item 0: .5 * 0   + 1 * .8                  = .8
    #   item 1: .5 * 1   + 1 * .6                  = 1.1
    #   item 2: .5 * .8  + 1 * (.8*.6 + .6*.8)     = .4 + .96 = 1.36
    # p I: .5 at item 1 (the teacher's item is that one); item 3 is not in the catalog
    # lambda c, the conversation (.6, .8), lambda 2: 2 * (.6, .8, .36 + .64) = (1.2, 1.6, 2)
    # sum: (2, 3.2, 3.36)
    # a line that is no item keeps its rank; the repeat at rank 3 adds nothing
    p_BI = compute_rank_weights([[3, -1, 3, 1]], 4)
    conversation = np.array([[0.6, 0.8]], np.float32)
    np.testing.assert_allclose(compute_scores(p_BI, ITEMS_ID, 3, conversation, 2.0), [[2.0, 3.2, 3.36]], rtol=1e-6)
    np.testing.assert_allclose(compute_matched_scores(p_BI[0, :3]), [-np.inf, 0.5, -np.inf])


def compute_scores(p_BI, items_ID, num_catalog, conversations_BD, weight):
    query_BD = compute_queries(p_BI, items_ID, conversations_BD, weight)
    one_space = np.zeros(len(query_BD), int)
    scores_BM = np.full((len(query_BD), num_catalog), np.nan)
    for rows, block in iter_scores(query_BD, one_space, items_ID[None, :num_catalog], p_BI[:, :num_catalog]):
        scores_BM[rows] = block
    return scores_BM


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), lists=st.lists(st.lists(st.integers(-1, 7), max_size=6), min_size=1, max_size=5))
def test_the_product_is_the_formula_and_blocks_change_nothing(seed, lists):
    rng = np.random.default_rng(seed)
    items_ID, conversations_BD = (
        normalise_rows(rng.normal(size=(8, 4))),
        normalise_rows(rng.normal(size=(len(lists), 4))),
    )
    p_BI = compute_rank_weights(lists, 8)
    scores = compute_scores(p_BI, items_ID, 5, conversations_BD, 0.5)
    s_IM, i_IM = items_ID @ items_ID[:5].T, np.eye(8, 5)
    expected = p_BI.toarray() @ (s_IM + i_IM) + 0.5 * conversations_BD @ items_ID[:5].T
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    with patch.object(remap, "BLOCK_SCORES", 1):  # one by one
        np.testing.assert_allclose(compute_scores(p_BI, items_ID, 5, conversations_BD, 0.5), expected, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(
    scores=st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(-np.inf)), max_size=20), count=st.integers(1, 25)
)
def test_top_candidates_match_a_stable_sort_without_excluded(scores, count):
    array = np.array(scores, np.float32)
    expected = [m for m in np.argsort(-array, kind="stable") if array[m] > -np.inf][:count]
    assert select_top(array, count).tolist() == expected


def test_rows_that_cannot_be_in_a_list():
    catalog = Catalog.from_items([("Heat", 1995), ("No Year", None), ("heat", 1995), ("Heat", 1986), ("Up", 2009)])
    # the third is the first once more; the Heat of 1986 is another film
    assert find_writable_rows(Matcher(catalog)).tolist() == [True, False, False, True, True]


def test_seen_rows_are_those_that_match_calls_seen():
    titles = ["Heat", "The Matrix", "Mother!", "Mother", "Alien 3", "Heat"]
    catalog = Catalog.from_items([(title, 1990 + 5 * n) for n, title in enumerate(titles)])
    for mode in ("fuzzy", "exact"):
        matcher = Matcher(catalog, mode)
        for seen in (["heat"], ["Matrix"], ["Mother!"], ["mother"], ["Matrix, The (1995)"], ["Nothing", "ALIEN 3"], []):
            items = [Item(title, year) for title, year in zip(catalog.titles, catalog.years, strict=True)]
            flags = matcher.match(items, [], seen).seen
            assert matcher.seen_rows(seen) == [row for row, flag in enumerate(flags) if flag]


def test_tfidf_svd_places_co_occurring_items_close_together():
    names = ["Ghosts (1990)", "Spectres (1991)", "Laughs (1992)"]
    texts = [*names, *["USER: scary haunted, like Ghosts (1990) or Spectres (1991)\n"] * 3]
    texts += ["USER: funny jokes, like Laughs (1992)\n"] * 3
    embedder = make_embedder(TFIDF_SVD, texts, names, dimensions=2, seed=1)
    vectors = embedder.encode([*names, "something haunted", "jokes please", "???"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 1, 1, 1, 1, 0], atol=1e-5)
    cosines = vectors @ vectors.T
    assert cosines[0, 1] > 0.9  # named together
    assert cosines[0, 2] < 0.1
    assert cosines[3, 0] > 0.9 > 0.1 > cosines[3, 2]  # the words of those who named it
    assert cosines[4, 2] > 0.9
    np.testing.assert_array_equal(embedder.encode(names), make_embedder(TFIDF_SVD, texts, names, 2, 1).encode(names))


def test_terms_are_words_and_the_longest_names():
    embedder = TfidfSvd(["some words"], ["Ring (1998)", "The Ring (2002)"], 5, 0)
    assert embedder.extract_terms("USER: I saw The Ring (2002), not Ring (1998) in 1999") == [
        *("saw", "ring", "ring"),
        *("the ring (2002)", "ring (1998)"),
    ]


def test_unusable_embeddings_are_refused(monkeypatch):
    for name in ("word2vec", "sentence-transformers:"):
        with refuses("demonstrations.unknown-embedding", f"--embedding {name}"):
            check_embedding(name)
    with refuses("demonstrations.no-words", "--embedding tfidf-svd"):
        make_embedder(TFIDF_SVD, ["the", "1999"])
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)  # as if not installed
    with refuses("demonstrations.missing-package", "`embeddings`"):
        check_embedding("sentence-transformers:any")


def test_a_sentence_transformer_from_a_folder_gives_unit_vectors(tmp_path, monkeypatch):
    """Any encoder-like Hugging Face folder is one, with mean pooling: here a tiny model made on the spot."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = [f"{word} ({year})" for word in ("Alpha", "Beta", "Gamma") for year in (1990, 1991)]
    model = make_tiny_model(tmp_path / "model", names, names, vocab_size=300, num_layers=1)
    vectors = make_embedder(f"sentence-transformers:{model}", []).encode([*names, "a longer text about Alpha (1990)"])
    assert vectors.shape == (7, 128)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    similar = vectors @ vectors[0]
    assert similar[0] > similar[1:6].max()  # every name has its own vector
    with refuses("demonstrations.unloadable-model", tmp_path / "nothing"):
        make_embedder(f"sentence-transformers:{tmp_path / 'nothing'}", [])


def test_a_models_own_code_only_runs_on_request(tmp_path, monkeypatch):
    from transformers import dynamic_module_utils

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    model = make_tiny_model(tmp_path / "model", ["Alpha"] * 50, ["Alpha"], vocab_size=300, num_layers=1)
    (model / "own_code.py").write_text(
        "from transformers import Qwen2Config, Qwen2Model\n"
        "class OwnConfig(Qwen2Config):\n    model_type = 'own'\n"
        "class OwnModel(Qwen2Model):\n    config_class = OwnConfig\n"
    )
    config = json.loads((model / "config.json").read_text())
    own = {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}
    (model / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": own}))
    name = f"sentence-transformers:{model}"
    with refuses("demonstrations.unloadable-model", "--trust-remote-code"):
        make_embedder(name, [])
    assert make_embedder(name, [], trust_remote_code=True).encode(["Alpha"]).shape == (1, 128)
