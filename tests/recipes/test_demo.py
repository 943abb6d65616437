"""What the demo says last; the demo itself is trained in tests/e2e."""

from pathlib import Path

from convrec.files import write_json
from recipes.demo import how_to_talk


def test_the_last_line_is_what_a_user_gets_of_both(tmp_path: Path) -> None:
    ndcg = {"popularity": 0.1, "retrieval": 0.5404, "sft": 0.4, "rank_grpo": 0.4472, "fused": 0.5512}
    models = {name: {"ndcg@20": {"mean": mean, "se": 0.01}} for name, mean in ndcg.items()}
    write_json(tmp_path / "summary.json", {"models": models})
    talk, both = how_to_talk(tmp_path).splitlines()
    serve = f"convrec serve --model demo={tmp_path}/rank_grpo --catalog {tmp_path}/data/catalog.parquet"
    assert talk == f"talk to the model in a browser: {serve}"
    assert both == (
        "model and retrieval together: NDCG@20 0.551 (the model alone 0.447, the retrieval alone 0.540): "
        f"{serve} --retrieval {tmp_path}/retrieval"
    )


def test_a_demo_of_before_had_no_retrieval(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"models": {"popularity": {}, "sft": {}, "rank_grpo": {}}})
    assert len(how_to_talk(tmp_path).splitlines()) == 1
