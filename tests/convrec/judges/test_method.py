"""Both orders of a pair share a batch, also in a resumed run, and get the right joint reward."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader

from convrec.judges import pairwise_reward as judge_pairwise
from convrec.judges.criteria import DEFAULTS
from convrec.judges.dataset import PairwiseDataset
from convrec.judges.method import JudgeMethod, make_pair_loader
from convrec.judges.schema import build_prompt, judge_schema, make_row, swap_row
from recipes.tiny_model import train_tokenizer
from tests.convrec.conftest import nested
from tests.user_errors import refuses


def loader(seed: int = 1) -> StatefulDataLoader:
    rows: Any = [{"row": torch.tensor(row)} for row in range(22)]
    return make_pair_loader(rows, batch_size=4, seed=seed)


def batches(data: Iterable[Any]) -> list[list[int]]:
    return [batch["row"].tolist() for batch in data]


def test_pairs_stay_together_and_epochs_have_different_orders() -> None:
    data = loader()
    epochs = [batches(data), batches(data)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4] * 5 == [4] * len(data)
        for batch in epoch:
            assert batch[1::2] == [row + 1 for row in batch[::2]]
            assert all(row % 2 == 0 for row in batch[::2])
        assert len({row for batch in epoch for row in batch}) == 20
    assert epochs[0] != epochs[1]
    assert batches(loader()) == epochs[0] != batches(loader(seed=2))


@pytest.mark.parametrize("done", [0, 2, 4])
def test_a_resumed_loader_continues_where_it_stopped(done: int) -> None:
    data = loader()
    batches(data)
    iterator = iter(data)
    for _ in range(done):
        next(iterator)
    state = data.state_dict()
    rest = batches(iterator) + batches(data)
    resumed = loader()
    resumed.load_state_dict(state)
    assert batches(resumed) + batches(resumed) == rest


# ---- the data set


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer(["Alien is a horror film. Up is not."] * 40, vocab_size=500)


def dataset(rows: list[dict[str, Any]], tokenizer: Any, tmp_path: Path, **changes: Any) -> PairwiseDataset:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(pa.Table.from_pylist(rows, judge_schema("pairwise")), path)
    config = {"max_prompt_length": 4096, "seed": 1, "orders": "together", "train_files": path} | changes
    return PairwiseDataset(path, tokenizer, OmegaConf.create(config))


def pair(query: str, length: int = 1) -> list[dict[str, Any]]:
    row = make_row([{"role": "user", "content": query}], ["good" * length, "bad"], "A", "test")
    return [row, swap_row(row)]


def test_training_rows_are_sorted_by_pair_and_labelled(tokenizer: Any, tmp_path: Path) -> None:
    (first, second), (third, fourth) = pair("a"), pair("b")
    data = dataset([first, third, fourth, second], tokenizer, tmp_path)
    assert [data[n]["raw_prompt"] for n in range(4)] == [
        build_prompt(row, "pairwise") for row in (first, second, third, fourth)
    ]
    assert [data[n]["extra_info"]["pair"] for n in range(4)] == [0, 0, 1, 1]
    validation = dataset([first, third], tokenizer, tmp_path, train_files="other.parquet")
    assert len(validation) == 2
    assert "pair" not in validation[0]["extra_info"]
    with refuses("judges.missing-order", "row 2"):
        dataset([first, second, third], tokenizer, tmp_path)


def test_a_pair_is_dropped_whole(tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*pair("a"), *pair("b", length=2000)]
    data = dataset(rows, tokenizer, tmp_path, max_prompt_length=3000)
    assert [row["input"][0]["content"] for row in data.dataframe] == ["a", "a"]
    assert "dropped 2 of 4 prompts over" in capsys.readouterr().out


# ---- rewards


# (prompt, pair, true, answer): order 1 of pair 0 is right twice, order 2 once; both orders of pair 1 answer A
ANSWERS = [
    ("p", 0, "A", "A"),
    ("p", 0, "A", "A"),
    ("q", 0, "B", "B"),
    ("q", 0, "B", "A"),
    ("r", 1, "A", "A"),
    ("r", 1, "A", "A"),
    ("s", 1, "B", "A"),
    ("s", 1, "B", "?"),
]


Step = Callable[[str], tuple[dict[str, float], dict[str, list[Any]]]]


@pytest.fixture
def step(queue: Callable[..., Any]) -> Step:
    """Runs a step's credit with given orders, without verl's advantages; returns metrics and fields."""
    infos = [
        judge_pairwise.compute_score("d", f"<better>{answer}</better>", true, malformed=-1.0)
        for *_, true, answer in ANSWERS
    ]
    engine = SimpleNamespace(_compute_advantage=lambda meta, metrics: meta)

    def run(orders: str) -> tuple[dict[str, float], dict[str, list[Any]]]:
        started = queue(
            tags=[{}] * len(ANSWERS),
            keys=[f"{uid}_{index % 2}_0" for index, (uid, *_) in enumerate(ANSWERS)],
            uid=[uid for uid, *_ in ANSWERS],
            extra_info=[{"pair": pair} for _, pair, *_ in ANSWERS],
            extra_fields=[{"reward_extra_info": info} for info in infos],
            rm_scores=nested([[0.0] * index + [info["score"]] for index, info in enumerate(infos)]),
        )
        method = JudgeMethod(OmegaConf.create({"convrec": {"orders": orders}, "actor_rollout_ref": {}}))
        metrics: dict[str, float] = {}
        assert method.assign_credit(engine, started.batch, metrics) is started.batch
        fields = {name: [getattr(value, "data", value) for value in row] for name, row in started.fields.items()}
        return metrics, fields

    return run


def get_last_values(rows: list[Any]) -> list[float]:
    return [row[-1].item() for row in rows]


def test_separate_orders_keep_their_scores_and_groups(step: Step) -> None:
    metrics, fields = step("separate")
    assert get_last_values(fields["rm_scores"]) == [1, 1, 1, 0, 1, 1, 0, -1]
    assert fields["uid"] == list("ppqqrrss")
    assert metrics["reward/zero_std"] == 2 / 4  # p and r
    assert "reward/right_both_ways" not in metrics


def test_consistent_answers_earn_1_if_both_orders_are_right(step: Step) -> None:
    metrics, fields = step("consistent")
    assert get_last_values(fields["rm_scores"]) == [1, 0, 1, 0, 0, 0, 0, -1]
    assert [row.sum().item() for row in fields["rm_scores"]] == [1, 0, 1, 0, 0, 0, 0, -1]
    assert metrics["reward/score"] == 1 / 8
    assert metrics["reward/right_both_ways"] == 2 / 8
    assert metrics["reward/zero_std"] == 1 / 4  # r


def test_together_both_orders_are_one_group(step: Step) -> None:
    """A judge that answers A to both orders of pair 1 has some answers that earn 1 and some that do not."""
    metrics, fields = step("together")
    assert fields["uid"] == ["pair-0"] * 4 + ["pair-1"] * 4
    assert get_last_values(fields["rm_scores"]) == [1, 1, 1, 0, 1, 1, 0, -1]
    assert metrics["reward/zero_std"] == 0


def test_a_checkpoint_gets_its_card(tmp_path: Path) -> None:
    model = tmp_path / "global_step_3" / "actor" / "huggingface"
    model.mkdir(parents=True)
    rows = [make_row([{"role": "user", "content": "a"}], ["x", "y"], "A", "survey")]
    data = {"mode": "pairwise", "criteria": DEFAULTS["pairwise"], "dataframe": rows}
    dataset = type("Data", (list,), data)(rows)
    engine = SimpleNamespace(train_dataset=dataset, run_folder=tmp_path, global_steps=3)
    config = OmegaConf.create({"convrec": {}, "actor_rollout_ref": {"model": {"path": "Qwen/Qwen3-8B"}}})
    JudgeMethod(config).write_card(engine, model)
    assert "1 rows: survey" in (model / "README.md").read_text()
    assert (model / "criteria.yaml").read_text().startswith("task: ")
