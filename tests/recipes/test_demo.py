"""What the demo chooses and says; the demos themselves are trained in tests/e2e and tests/tutorials."""

from dataclasses import replace
from pathlib import Path

import pytest

from convrec.base.files import write_json
from convrec.base.options import parse
from recipes.demo import check_machine, choose_demo, collect_gains, collect_results, describe_serving, format_gains
from recipes.demos.sizes import PRETRAINED, TINY
from recipes.options.demo import SMOLLM2, DemoOptions
from tests.user_errors import refuses


@pytest.mark.parametrize("k", [10, 20])
def test_the_last_line_is_what_a_user_gets_of_both(tmp_path: Path, k: int) -> None:
    means = {"popularity": 0.1, "retrieval": 0.5404, "sft": 0.4, "rank_grpo": 0.4472, "fused": 0.5512}
    models = {
        name: {"recall@50": {"mean": 0.9}, "ndcg@5": {"mean": 0.0}, f"ndcg@{k}": {"mean": mean}}
        for name, mean in means.items()
    }
    write_json(tmp_path / "summary.json", {"models": models})
    talk, both = describe_serving(tmp_path).splitlines()
    serve = f"convrec serve --model {tmp_path.name}={tmp_path}/rank_grpo --catalog {tmp_path}/data/catalog.parquet"
    assert talk.endswith(f": {serve}")
    assert both == (
        f"model and retrieval together: NDCG@{k} 0.551 (the model alone 0.447, the retrieval alone 0.540): "
        f"{serve} --retrieval {tmp_path}/retrieval"
    )


def test_a_demo_of_before_had_no_retrieval(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"models": {"popularity": {}, "sft": {}, "rank_grpo": {}}})
    assert len(describe_serving(tmp_path).splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "demo", "out", "model"),
    [
        ("", TINY, "outputs/demo", None),
        ("--pretrained", PRETRAINED, "outputs/pretrained", SMOLLM2),
        ("--pretrained org/name --out here --sft-steps 2", replace(PRETRAINED, sft_steps=2), "here", "org/name"),
        ("--rl-steps 1", replace(TINY, rl_steps=1), "outputs/demo", None),
    ],
)
def test_options_choose_the_demo(words: str, demo: object, out: str, model: str | None) -> None:
    options = parse(DemoOptions, words.split())
    assert options.pretrained == model
    assert choose_demo(options) == (demo, Path(out))


def test_too_little_disk_or_memory_is_one_line(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with refuses("demo.full-disk", out, "10000000 GiB"):
        check_machine(replace(TINY, disk_gib=1e7), out)
    with refuses("demo.too-little-memory", "10000000 GiB"):
        check_machine(replace(TINY, memory_gib=1e7), out)
    out.mkdir()
    with (out / "sparse").open("wb") as file:  # large, and takes nothing
        file.truncate(2**43)
    check_machine(replace(TINY, disk_gib=2**13, memory_gib=0), out)


def test_the_table_goes_from_no_model_to_all_together() -> None:
    paper = {"popularity": "p", "retrieval": "r", "model": "m", "fused": "f"}
    evaluations = {
        "zero_shot": {"results": {"paper": {"popularity": "p", "model": "z"}}},
        "sft": {"results": {"paper": {"popularity": "p", "model": "s"}}},
        "rank_grpo": {"results": {"paper": paper}},
    }
    assert list(collect_results(evaluations).items()) == [
        ("popularity", "p"),
        ("retrieval", "r"),
        ("zero_shot", "z"),
        ("sft", "s"),
        ("rank_grpo", "m"),
        ("fused", "f"),
    ]


def test_gains_are_over_the_model_before_and_over_retrieval() -> None:
    def pair(recall: float, ndcg: float) -> dict[str, dict[str, float]]:
        return {"recall@10": {"mean": recall, "se": 0.02}, "ndcg@10": {"mean": ndcg, "se": 0.01}}

    evaluations: dict[str, dict] = {
        "zero_shot": {},
        "sft": {"paired": pair(0.2, 0.1) | {"against": "demo/evaluation/zero_shot"}},
        "rank_grpo": {"paired": pair(0.04, 0.03) | {"against": "demo/evaluation/sft"}},
    }
    evaluations["rank_grpo"]["fused"] = {"paired": pair(-0.01, 0.005)}
    gains = collect_gains(evaluations)
    assert gains == {
        "sft": {"minus": "zero_shot"} | pair(0.2, 0.1),
        "rank_grpo": {"minus": "sft"} | pair(0.04, 0.03),
        "fused": {"minus": "retrieval"} | pair(-0.01, 0.005),
    }
    assert format_gains(gains, 10).splitlines() == [
        "                             Recall@10          NDCG@10",
        "sft minus zero_shot    +0.2000 ±0.0200  +0.1000 ±0.0100",
        "rank_grpo minus sft    +0.0400 ±0.0200  +0.0300 ±0.0100",
        "fused minus retrieval  -0.0100 ±0.0200  +0.0050 ±0.0100",
    ]
    assert list(collect_gains({"sft": {}, "rank_grpo": evaluations["rank_grpo"]})) == ["rank_grpo", "fused"]
