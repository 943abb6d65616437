"""The stage on files: what it fits and counts, and that the number of processes does not matter."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from convrec.data.schema import TRUTH, format_prompt
from convrec.titles.item import format_item
from data_prep.stages import adjust, metadata, ranges, reflect, remap, rows, teacher
from data_prep.tables import open_parquet_writer
from tests.user_errors import refuses

FILMS = [(f"Film {name}", 1990) for name in "ABCDEFGHIJ"]
SETTINGS = adjust.AdjustSettings(softmax="catalog", penalty=0.5, max_epochs=100)
REMAP = remap.RemapSettings(
    embedding="tfidf-svd",
    dimensions=4,
    seed=1,
    trust_remote_code=False,
    candidates=4,
    conversation_weight=1.0,
    remap="full",
)
KINDS = ("scary", "funny", "sad")


def write_stages(folder, conversations=60, remapped="full"):
    """The teacher names two films of a kind; the ground truth is film J, which it never names, or the seen film A."""
    rng, table, lists = np.random.default_rng(1), [], []
    for n in range(conversations):
        kind = n % 3
        truth = [FILMS[9]] if n % 2 else [FILMS[0], FILMS[kind + 1], ("Unknown", 2000)]
        text = f"USER: something {KINDS[kind]} {' '.join(rng.choice(list('xyzuvw'), 3))}\n"
        table.append({
            "prompt": [{"content": format_prompt(text), "role": "user"}], "seen_titles": ["Film A"],
            TRUTH: [[title, str(year)] for title, year in truth], "sample_id": f"c{n}", "group": f"c{n // 2}",
            "split": "train" if n < conversations - 6 else "validation",
        })  # fmt: skip
        lists.append({"sample_id": f"c{n}", "answer": "", "items": [kind + 1, kind + 4, 7 + kind % 2]})
    titles, years = zip(*FILMS, strict=True)
    pq.write_table(pa.table({"title": titles, "year": pa.array(years, pa.int32())}), folder / rows.CATALOG)
    texts = [f"{format_item(*film)}\ngenre: {KINDS[n % 3]}" for n, film in enumerate(FILMS)]
    pq.write_table(pa.table({"title": titles, "year": years, "text": texts}), folder / metadata.FILE)
    for name, data, schema in ((rows.ROWS, table, rows.SCHEMA), (teacher.FILE, lists, teacher.SCHEMA)):
        with open_parquet_writer(folder / name, schema) as writer:
            for start in range(0, len(data), 7):  # row groups that are not the ranges
                writer.write_table(pa.Table.from_pylist(data[start : start + 7], schema))
    record = {"id": "", "settings": {"num_items": 2}, "inputs": {}, "files": [], "summary": {}}
    (folder / "rows.json").write_text(json.dumps(record))
    remap.run(folder, replace(REMAP, remap=remapped))
    with open_parquet_writer(folder / reflect.FILE, reflect.SCHEMA) as writer:  # the last candidate is rated 2
        remapped_rows = pq.read_table(folder / remap.FILE).to_pylist()
        ratings = [[0.0] * (len(row["candidates"]) - 1) + [2.0] for row in remapped_rows]
        scores = [
            [s + 0.5 * r for s, r in zip(row["scores"], row_ratings, strict=True)]
            for row, row_ratings in zip(remapped_rows, ratings, strict=True)
        ]
        columns = [[row["sample_id"] for row in remapped_rows], ratings, scores]
        writer.write_table(pa.table(dict(zip(reflect.SCHEMA.names, columns, strict=True)), reflect.SCHEMA))


def read(path):
    return pq.read_table(path).to_pylist()


@pytest.fixture
def stages(tmp_path):
    write_stages(tmp_path)
    return tmp_path


def test_non_candidate_ground_truths_count_and_enter_the_lists(stages):
    assert not any(9 in row["candidates"] for row in read(stages / remap.FILE))
    summary = adjust.run(stages, SETTINGS)
    # 54 training rows: 27 with film J alone; 27 with A, which is seen, one of its kind, and one of no catalog
    assert (summary["ground_truths"], summary["ground_truths_fitted"]) == (27 + 27 * 3, 27 + 27)
    assert summary["conversations"] == 27  # two rows each
    weights = read(stages / rows.ADJUST_WEIGHTS)
    assert [row["ground_truths"] for row in weights] == [0, 9, 9, 9, 0, 0, 0, 0, 0, 27]
    assert weights[9]["b"] > 1
    assert weights[9]["lists_before"] == 0 < weights[9]["lists_after"]
    assert weights[0]["lists_after"] == 0  # everyone has seen it
    assert summary["log_likelihood"][1] > summary["log_likelihood"][0] + 0.5
    assert any("54 of 108 ground truths are not in the catalog" in text for text in summary["warnings"])
    assert any("fitted to only 27 conversations; give at least 300" in text for text in summary["warnings"])


def test_a_softmax_over_candidates_only_reorders_them(stages):
    summary = adjust.run(stages, replace(SETTINGS, softmax="candidates"))
    assert summary["ground_truths_fitted"] == 108 - summary["ground_truths_not_candidates"] == 27
    for before, after in zip(read(stages / remap.FILE), read(stages / rows.ADJUSTED), strict=True):
        assert set(before["candidates"]) == set(after["candidates"])
    assert read(stages / rows.ADJUST_WEIGHTS)[9]["b"] == 0


def test_a_fit_that_stops_before_its_maximum_is_reported(stages):
    warning = "the fit of w and b stopped before its maximum, after"
    assert any(warning in text for text in adjust.run(stages, replace(SETTINGS, max_epochs=2))["warnings"])
    assert not any(warning in text for text in adjust.run(stages, SETTINGS)["warnings"])


def test_without_passes_the_lists_are_those_of_reflect(stages):
    summary = adjust.run(stages, replace(SETTINGS, max_epochs=0))
    assert (summary["epochs"], summary["log_likelihood"]) == (0, [])
    assert not any("conversations" in text or "maximum" in text for text in summary["warnings"])
    for rated, remapped, after in zip(
        *(read(stages / f) for f in (reflect.FILE, remap.FILE, rows.ADJUSTED)), strict=True
    ):
        scores_before = dict(zip(remapped["candidates"], rated["scores"], strict=True))
        scores_after = dict(zip(after["candidates"], after["scores"], strict=True))
        common = scores_before.keys() & scores_after.keys()
        assert {m: scores_after[m] for m in common} == pytest.approx({m: scores_before[m] for m in common}, abs=1e-5)
        assert after["scores"] == sorted(after["scores"], reverse=True)
        assert len(after["candidates"]) == len(remapped["candidates"])


def build(folder, workers):
    """Run both stages, and return their tables."""
    remap.run(folder, REMAP, workers=workers)
    remapped = read(folder / remap.FILE)
    adjust.run(folder, SETTINGS, workers)
    return remapped, read(folder / rows.ADJUST_WEIGHTS), read(folder / rows.ADJUSTED)


@pytest.fixture
def alone(stages, monkeypatch):
    """The tables of one process with ranges of 16 rows."""
    monkeypatch.setattr(ranges, "RANGE_ROWS", 16)
    return build(stages, 1)


def test_several_processes_find_the_same_to_the_last_bit(stages, alone):
    assert build(stages, 2) == alone


def test_the_size_of_ranges_and_blocks_changes_rounding_alone(stages, alone, monkeypatch):
    monkeypatch.setattr(ranges, "RANGE_ROWS", 60)
    monkeypatch.setattr(remap, "BLOCK_SCORES", 25)  # two rows
    for row, other in zip(alone[2], build(stages, 1)[2], strict=True):
        assert row["candidates"] == other["candidates"]
        np.testing.assert_allclose(row["scores"], other["scores"], rtol=1e-4)


def test_nothing_to_fit_is_refused(tmp_path):
    write_stages(tmp_path, conversations=6)  # validation only
    with refuses("demonstrations.no-ground-truth", tmp_path):
        adjust.run(tmp_path, SETTINGS)
