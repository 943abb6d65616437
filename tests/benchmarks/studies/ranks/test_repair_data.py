"""The data of the study of repair."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.studies.ranks.repair_data import write_one_wanted, write_wanted_first
from convrec.data.schema import RL_SCHEMA, SFT_SCHEMA, TRUTH


def test_repair_moves_wanted_titles_first_and_keeps_list_length(tmp_path: Path) -> None:
    def row(name: str, truth: list[list[str]]) -> dict:
        prompt = [{"role": "user", "content": name}]
        return {"prompt": prompt, "seen_titles": [], TRUTH: truth, "sample_id": name}

    rows = [row("a", [["Heat", "1995"], ["Up", "2009"]]), row("b", []), row("c", [["Up", "2009"]])]
    answer = [{"role": "assistant", "content": "Alien (1979)\nHeat (1995)\nJaws (1975)"}]
    (tmp_path / "data").mkdir()
    train, demonstrations = tmp_path / "data" / "train.parquet", tmp_path / "data" / "sft_train.parquet"
    pq.write_table(pa.Table.from_pylist(rows, RL_SCHEMA), train)
    pq.write_table(pa.Table.from_pylist([one | {"completion": answer} for one in rows[:2]], SFT_SCHEMA), demonstrations)
    write_wanted_first(train, demonstrations, tmp_path / "first.parquet")
    (found,) = pq.read_table(tmp_path / "first.parquet").to_pylist()
    assert found["completion"][0]["content"] == "Heat (1995)\nUp (2009)\nAlien (1979)"
    write_one_wanted(tmp_path / "data", tmp_path / "one")
    found = pq.read_table(tmp_path / "one" / "train.parquet").to_pylist()
    assert [len(one[TRUTH]) for one in found] == [1, 0, 1]
    assert found[0][TRUTH][0] in rows[0][TRUTH]
    assert (tmp_path / "one" / "sft_train.parquet").read_bytes() == demonstrations.read_bytes()
