"""Stored answers: the file after each batch, and the answers that the next start finds."""

from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq

from convrec.inference.answers import Store

BATCH = 10


def answer(text: str) -> dict[str, object]:
    return {"text": text, "token_ids": [1], "finish_reason": "stop", "prompt_tokens": 3, "prompt_truncated": False}


def store(path: Path, prompts: int) -> Store:
    return Store({"model": "m"}, {f"p{n}": [{"role": "user", "content": f"{n}"}] for n in range(prompts)}, path)


def test_answers_on_disk_lag_by_less_than_a_twentieth(
    tmp_path: Path,
) -> None:
    path, prompts = tmp_path / "answers.parquet", 1_003
    first, on_disk = store(path, prompts), []
    for start in range(0, prompts, BATCH):
        first.keep([(n, answer(f"to {n}")) for n in range(start, min(start + BATCH, prompts))])
        on_disk.append(pq.read_metadata(path).num_rows)
    assert on_disk[:21] == [BATCH * (n + 1) for n in range(21)]  # the first 20 batches are written at once
    counts = zip(on_disk, range(BATCH, prompts + BATCH, BATCH), strict=True)
    assert all(num_written >= num_answers / 1.05 for num_written, num_answers in counts if num_answers < prompts)
    assert len(set(on_disk)) < len(on_disk) * 0.7
    assert on_disk[-1] == prompts

    again = store(path, prompts)
    assert again.missing() == []
    assert again.answers()["p1002"]["text"] == "to 1002"


def test_restart_does_not_request_written_answers_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.parquet"
    many = store(path, 200)
    with suppress(KeyboardInterrupt), many.flush_on_exit():
        many.keep([(n, answer("some")) for n in range(100)])
        many.keep([(100, answer("one"))])
        assert pq.read_metadata(path).num_rows == 100
        raise KeyboardInterrupt
    assert len(store(path, 200).missing()) == 99
    path.unlink()
    store(path, 30).keep([(2, answer("third")), (0, answer("first"))])
    second = store(path, 30)
    assert len(second.missing()) == 28
    second.keep([(n, answer("now")) for n in range(28)])
    assert [store(path, 30).answers()[f"p{n}"]["text"] for n in range(3)] == ["first", "now", "third"]
