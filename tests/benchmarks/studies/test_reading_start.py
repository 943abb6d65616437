"""Tables and a start for models that read candidates."""

from pathlib import Path

import pyarrow as pa
import torch
from transformers import AutoModelForCausalLM

from benchmarks.studies.reading_start import SMALLEST, teach_to_read, write_demonstrations
from convrec.base.files import write_table
from convrec.data.schema import CONVERSATION_MARKER
from convrec.features.candidates.prompts import CANDIDATES_LINE
from recipes.tiny_model import make_tiny_model

PROMPT = f"Recommend.\n{CANDIDATES_LINE}A (2001)\nB (2002)\nC (2003)\n{CONVERSATION_MARKER}USER: films of the nineties"


def write_rows(folder: Path, answer: str) -> None:
    row = {"prompt": [{"role": "user", "content": PROMPT}], "completion": [{"role": "assistant", "content": answer}]}
    for name in ("sft_train", "sft_validation"):
        write_table(folder / f"{name}.parquet", pa.Table.from_pylist([row] * 2))


def test_demonstrations_fuse_teacher_and_candidates_equally(tmp_path: Path) -> None:
    write_rows(tmp_path, "C (2003)\nD (2004)")
    write_demonstrations(tmp_path, 3, tmp_path / "out")
    row = pa.parquet.read_table(tmp_path / "out" / "sft_train.parquet").to_pylist()[0]
    # C has 1/11 + 1/13; A 1/11; D and B 1/12 each, of which the teacher's own stands first
    assert row["completion"][0]["content"].splitlines() == ["C (2003)", "A (2001)", "D (2004)"]
    assert row["prompt"][0]["content"] == PROMPT


def test_a_start_is_taught_the_same_each_time(tmp_path: Path) -> None:
    write_rows(tmp_path, "C (2003)")
    titles = ["A", "B", "C", "D"]
    model = make_tiny_model(tmp_path / "model", [PROMPT], titles, num_layers=1, tie_word_embeddings=True)
    for name in ("one", "two"):
        teach_to_read(model, tmp_path, [f"{title} (2001)" for title in titles], 3, tmp_path / name, SMALLEST)
    before, one, two = (
        AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight
        for folder in (model, tmp_path / "one", tmp_path / "two")
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, before)
