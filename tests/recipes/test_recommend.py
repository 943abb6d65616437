"""What the replicas of batch recommendation are given; their lists are tested with the recommender."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.checkpoints.saving import BEST
from convrec.inference.engines import placement
from convrec.inference.served_model import find_model
from recipes import recommend as recipe
from recipes.batch.chats import Chat
from recipes.batch.parts import SCHEMA
from tests.conftest import mark_complete


def test_replicas_load_the_found_checkpoint_despite_newer_ones(
    tmp_path: Path,
    sound_model: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, catalog, chats = tmp_path / "run", tmp_path / "catalog.parquet", tmp_path / "chats.jsonl"
    for step in (2, 4):
        sound_model(run / f"global_step_{step}" / "actor" / "huggingface", weight=step)
    mark_complete(run, 2, 4)
    (run / BEST).write_text(json.dumps({"step": 2}))
    thinks = "data: {apply_chat_template_kwargs: {enable_thinking: true}}\n"
    (run / "config.yaml").write_text(thinks + "convrec: {num_items: 5, year_tolerance: 1}\n")
    pq.write_table(pa.table({"title": ["Heat", "Ran"], "year": [1995, None]}), catalog)
    chats.write_text('{"conversation": "hi"}\n' * 3)
    monkeypatch.setattr(recipe, "CPU_BATCH", 1)
    monkeypatch.setattr(recipe, "visible_gpus", list)
    monkeypatch.chdir(tmp_path)
    expected = find_model("run", catalog, None, None)
    asked = []

    class Pool:
        def __init__(self, environments: Any, load: Any, settings: dict[str, Any], log: Path) -> None:
            asked.append(settings)

        def answers(self, tasks: Iterable[list[Chat]]) -> Iterator[tuple[int, pa.Table]]:
            (run / BEST).write_text(json.dumps({"step": 4}))  # a validation, before a replica has loaded
            for number, (chat,) in reversed([*enumerate(tasks)]):  # whichever part is done first
                yield number, pa.Table.from_pylist([{"row": chat.row}], SCHEMA)

        def close(self) -> None: ...

    monkeypatch.setattr(placement, "Pool", Pool)
    out = tmp_path / "lists.parquet"
    assert recipe.main(["--model", "run", "--catalog", str(catalog), "--in", str(chats), "--out", str(out)]) == 0
    assert f"{catalog}: " in capsys.readouterr().err  # Ran, which has no year
    assert pq.read_table(out)["row"].to_pylist() == [0, 1, 2]
    (given,) = asked
    assert Path(given["model"]).absolute() == run / "global_step_2" / "actor" / "huggingface"
    loaded = find_model(given["model"], Path(given["catalog"]), given["item"], given["num_items"])
    assert (loaded.version, loaded.lists, loaded.item) == (expected.version, expected.lists, expected.item)
    assert loaded.chat_template_kwargs == expected.chat_template_kwargs == {"enable_thinking": True}
    assert find_model("run", catalog, None, None).version != expected.version


def test_a_catalog_that_is_not_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chats.jsonl").write_text('{"conversation": "hi"}\n')
    files = ["--catalog", str(tmp_path / "no.parquet"), "--in", str(tmp_path / "chats.jsonl")]
    assert recipe.main(["--model", "x", *files, "--out", str(tmp_path / "lists.parquet")]) == 2
    assert str(tmp_path / "no.parquet") in capsys.readouterr().err
