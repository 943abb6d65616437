"""Retrieval in a recommender: fused lists under every filter, and lists without an engine.

The engine is one that prefers fixed items; test_recommender.py runs vLLM.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec import Recommendations, Recommender
from convrec.base.files import write_json
from convrec.data.schema import RL_SCHEMA, format_prompt
from convrec.features.candidates.prompts import CANDIDATES_LINE, with_candidates
from convrec.features.constrained.catalog_trie import load_catalog_trie
from convrec.features.constrained.vllm_lists import read_arguments
from convrec.features.constrained.walk import Walk
from convrec.inference.lists import Question
from convrec.inference.retrieval import ServedRetrieval
from convrec.lists.settings import ListSettings
from convrec.retrieval.folder import NOTES, load_notes
from recipes.retrieval import fit_retrieval
from tests.recipes.evaluation.small import row
from tests.user_errors import refuses

FILMS = {"Alien": 1979, "Heat": 1995, "Jaws": 1975, "Ran": 1985, "Up": 2009}
TRAIN = [
    *[row(f"a{n}_t1", "space monsters", ["Alien"], films=FILMS) for n in range(3)],
    *[row(f"b{n}_t1", "robbery crime", ["Heat", "Jaws"], films=FILMS) for n in range(2)],
    row("c_t1", "robbery crime", ["Heat"], ["Ran"], FILMS),
]


class Engine:
    """Stands for vLLM's engine, with a model that would write the items of these numbers, in this order.

    The n-th of them has log-probs of -n.
    """

    NUMBERS = (4, 3, 2, 1, 0, 5, 6)

    def __init__(self, model: str, trie_file: str, **settings: Any) -> None:
        self.trie_file = Path(trie_file)

    async def outputs(self, prompt_ids: Sequence[int], sampling: Any) -> AsyncIterator[Any]:
        arguments = read_arguments(sampling.extra_args)
        assert arguments
        num_items, excluded, version = arguments
        trie = load_catalog_trie(self.trie_file.with_name(version))
        lines = np.split(trie.tokens, trie.ends_S[:-1])
        line_by_number = {int(number): line.tolist() for number, line in zip(trie.item_W, lines, strict=False)}
        walk = Walk(trie, num_items, excluded)
        numbers = [number for number in self.NUMBERS if number in line_by_number and number not in excluded]
        tokens: list[int] = []
        log_probs: list[dict[int, Any]] = []
        for rank, number in enumerate(numbers[: walk.num_items]):
            for token in line_by_number[number]:
                allowed = walk.allowed()
                tokens.append(token if token in allowed else allowed[0])  # the last line ends in another token
                log_probs.append({tokens[-1]: SimpleNamespace(logprob=-float(rank))})
                walk.advance(tokens[-1])
        yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=log_probs)])

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(coroutine)

    def iterate(self, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
        return items

    def close(self) -> None: ...


@pytest.fixture
def load(unread_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Recommender]:
    """Loads a recommender whose model writes Up, Ran, Jaws, Heat, Alien, if they may be listed."""
    table = {"item_id": [*"ahjru"], "title": [*FILMS], "year": pa.array(FILMS.values(), pa.int32())}
    pq.write_table(pa.table(table | {"mentions": [1, 2, 3, 4, 5]}), tmp_path / "catalog.parquet")
    pq.write_table(pa.Table.from_pylist(TRAIN, RL_SCHEMA), tmp_path / "train.parquet")
    train, catalog = tmp_path / "train.parquet", tmp_path / "catalog.parquet"
    folder = Path(fit_retrieval([train], train, catalog)["out"])

    def load(weight: float | None = 0.5, model: Path = unread_model, **settings: Any) -> Recommender:
        chosen = {} if weight is None else {"fusion": {"weight": weight, "constant": 10.0}}
        notes = {name: value for name, value in load_notes(folder).items() if name != "fusion"}
        choice = {"neighbours": 50, "constant": 10.0, "weights": {"neighbours": 1.0}}
        write_json(folder / NOTES, notes | {"choice": choice} | chosen)
        return Recommender.load(model, catalog, **{"retrieval": folder, "max_items": 5} | settings)

    monkeypatch.setattr("convrec.inference.engines.async_engine.Engine", Engine)
    return load


def ids(found: Recommendations) -> str:
    return "".join(item.item_id for item in found)


def test_a_catalog_that_is_replaced_while_a_retrieval_is_loaded_is_refused(
    load: Callable[..., Recommender], tmp_path: Path, replace_when_read: Callable[[Path, pa.Table], None]
) -> None:
    """Otherwise an item of one file would have the words of another one in the next."""
    file = tmp_path / "catalog.parquet"
    replace_when_read(file, pq.read_table(file)[::-1])
    with refuses("catalog.changed", file):
        ServedRetrieval(tmp_path / "catalog.retrieval", file, ListSettings(), fuses=False)


def test_fused_list_prefix_does_not_depend_on_k(load: Callable[..., Recommender]) -> None:
    """The model writes u r j h a. For "a robbery", retrieval has h (3 rows), j (2), then a, which is popular.

    u and r come last, by the catalog's mentions. With weight 1/2 and 1 / (10 + rank): h 1/14 + 1/11 = .162, u 1/11 +
    1/14 = .162, j 1/13 + 1/12 = .160, r 1/12 + 1/15 = .150, a 1/15 + 1/13 = .144. h and u tie, so the model's order
    decides.
    """
    recommender = load(0.5)
    found = recommender.recommend("a robbery", k=5)
    assert ids(found) == "uhjra"
    assert [item.rank for item in found] == [1, 2, 3, 4, 5]
    assert [item.score for item in found] == [0, -3, -2, -1, 0]  # the model's, which has no choice left for the last
    for k in range(1, 5):
        assert ids(recommender.recommend("a robbery", k=k)) == "uhjra"[:k]
    assert not found.fallback
    facts, items = recommender.open_stream("a robbery", k=2)

    async def streamed() -> list[Any]:
        return [item async for item in items]

    assert [item.item_id for item in asyncio.run(streamed())] == ["u", "h"]
    assert facts.items == ()


def test_weights_1_and_0_are_the_models_list_and_the_retrievals(load: Callable[..., Recommender]) -> None:
    assert ids(load(1.0).recommend("a robbery", k=5)) == "urjha"
    alone = load(0.0)
    assert ids(alone.recommend("a robbery", k=5)) == "hjaur"
    assert ids(alone.popular("a robbery", k=5)) == "hjaur"


def test_filters_apply_to_model_and_retrieval(load: Callable[..., Recommender]) -> None:
    for recommender in (load(0.5), load(0.0)):
        for filters in (
            {"seen": ["Heat (1995)"]},
            {"exclude": ["h", "a"]},
            {"allow": ["h", "r", "u"]},
            {"allow": ["r"], "seen": ["u"]},
            {"where": {"mentions": {"max": 2}}},
        ):
            arguments: dict[str, Any] = filters
            items = recommender.recommend("a robbery", k=5, **arguments)
            assert sorted(ids(items)) == sorted(ids(recommender.popular("a robbery", k=5, **arguments)))
            assert len({*ids(items)}) == len(items) > 0
            left = {*"ahjru"} & {*arguments.get("allow", "ahjru")} - {*arguments.get("exclude", ())}
            assert {*ids(items)} <= left - ({"h"} if arguments.get("seen") == ["Heat (1995)"] else set())
            assert items.reason == recommender.popular("a robbery", k=5, **arguments).reason is not None


def test_retrieval_serves_without_engine_or_fusion_weight(load: Callable[..., Recommender]) -> None:
    recommender = load(None, with_engine=False)
    found = recommender.popular("monsters from space", k=3)
    assert (ids(found), found.fallback, [item.score for item in found]) == ("ahj", True, [None] * 3)
    plain = load(None, retrieval=None, with_engine=False)
    assert ids(plain.popular("monsters from space", k=3)) == "urj"
    assert ids(recommender.popular("no word in common", k=2)) == "ah"  # three rows each, in catalog order
    with refuses("retrieval.no-weight"):
        load(None)


def test_a_request_ranks_only_the_items_that_it_can_use(
    load: Callable[..., Recommender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convrec.inference.request_builder.DEPTH", 2)
    recommender = load(0.5)
    for k, expected in ((1, "ah"), (3, "ahj"), (5, "ahjur")):  # u and r, which no training row wants, come last
        request = recommender._requests.build("monsters from space", k)
        found = [request.allowed.snapshot.items[number].item_id for number in request.retrieved]
        assert "".join(found) == expected, k


def test_seen_and_liked_titles_count_as_named_in_retrieval(load: Callable[..., Recommender]) -> None:
    recommender = load(None, with_engine=False)
    retriever = recommender._requests.retrieval._retriever  # type: ignore[union-attr]
    asked: list[Any] = []
    rank = retriever.rank
    retriever.rank = lambda one, *others: asked.append([*one.named]) or rank(one, *others)  # type: ignore[method-assign]
    recommender.popular("hello", 2, seen=["Ran"], liked=["a"], exclude=["u"])
    assert asked == [[0, 3]]


def test_a_catalog_that_changes_while_it_serves(load: Callable[..., Recommender]) -> None:
    """A replaced item gets a new number; the retrieval does not know a new item, so it comes last."""
    recommender = load(0.5)
    recommender.add_items([{"item_id": "h", "title": "Heat", "year": 1995, "mentions": 50}])
    recommender.add_items([{"item_id": "n", "title": "Nope", "year": 2022}])
    recommender.remove_items(["j"])
    assert ids(recommender.popular("a robbery", k=5)) == "hauran"[:2] + "urn"
    assert {*ids(recommender.recommend("a robbery", k=5))} == {*"aurhn"}


def test_model_trained_with_candidates_reads_the_best_allowed(
    load: Callable[..., Recommender], unread_model: Path, tmp_path: Path
) -> None:
    """The prompt is that of training. Without a weight, the list is the model's: u r j, of k items."""
    model = tmp_path / "run" / "global_step_1" / "model"
    shutil.copytree(unread_model, model)
    (tmp_path / "run" / "config.yaml").write_text("convrec: {candidates: 2, num_items: 4}")
    recommender = load(None, model=model)
    requests = recommender._requests
    found = requests.build("a robbery", 3, exclude=["j"])
    trained = with_candidates(format_prompt("USER: a robbery\n", 4), ["Heat (1995)", "Alien (1979)"])
    read = requests.tokenizer.decode(found.prompt.token_ids)
    assert trained.strip() in read
    requests.questions = [Question("Which genre?", "genre", ())]  # candidates are those of the first turn
    answered = "USER: a robbery\nSYSTEM: Which genre?\nUSER: A fairy tale of sharks.\n"
    read = requests.tokenizer.decode(requests.build(answered, 3, exclude=["j"]).prompt.token_ids)
    assert trained.strip() in read
    requests.questions = []
    assert ids(recommender.recommend("a robbery", k=3)) == "urj"
    fused = load(0.5)._requests
    assert CANDIDATES_LINE not in fused.tokenizer.decode(fused.build("a robbery", 3).prompt.token_ids)
    with refuses("model.needs-retrieval", "CANDIDATES=2", "--retrieval"):
        load(None, model=model, retrieval=None)
