"""Vectors from embeddings that were not fitted on the conversation they encode."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from convrec.titles.item import format_item
from data_prep.stages.embeddings import TFIDF_SVD
from data_prep.stages.metadata import FILE as METADATA
from data_prep.stages.ranges import open_process_pool
from data_prep.stages.rows import CATALOG, ROWS, SCHEMA
from data_prep.stages.spaces import (
    EmbeddingSettings,
    choose_space,
    load_conversation_vectors,
    load_item_vectors,
    make_spaces,
)

FILMS = [("Odd", 1990), ("Plain", 1991), ("Other", 1992)]


def row(group, text, split="train"):
    truth: list = []
    named = dict.fromkeys(("seen_titles", "groundtruth_with_release_year"), truth)
    return {
        "prompt": [{"content": text, "role": "user"}],
        **named,
        "sample_id": f"{group}{text}",
        "split": split,
        "group": group,
    }


def test_training_row_is_placed_by_an_embedding_blind_to_it(tmp_path):
    titles, years = zip(*FILMS, strict=True)
    pq.write_table(pa.table({"title": titles, "year": pa.array(years, pa.int32())}), tmp_path / CATALOG)
    pq.write_table(pa.table({"text": [format_item(*film) for film in FILMS]}), tmp_path / METADATA)
    # only conversation `a` says zebra and names Odd; the others name Plain and Other
    rows = [row("a", "zebra"), row("a", "zebra Odd (1990)"), row("v", "zebra", "validation")]
    rows += [row(f"c{n}", f"lion {('Plain (1991)', 'Other (1992)')[n % 2]}") for n in range(20)]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), tmp_path / ROWS)
    settings = EmbeddingSettings(TFIDF_SVD, dimensions=3, seed=1, trust_remote_code=False)
    with open_process_pool(1) as map_ranges:
        num_spaces = make_spaces(tmp_path, tmp_path, settings, map_ranges)
    vectors = load_conversation_vectors(tmp_path, 0, len(rows))
    for asked, rates_odd in ((0, False), (2, True)):
        odd = vectors[asked] @ load_item_vectors(tmp_path, choose_space(rows[asked], num_spaces))[0]
        assert (odd > 0.3) == rates_odd
    assert (
        choose_space(rows[0], num_spaces) == choose_space(rows[1], num_spaces) > 0 == choose_space(rows[2], num_spaces)
    )
    assert choose_space(rows[0], 1) == 0  # a pretrained model
    np.testing.assert_allclose(np.linalg.norm(vectors[[2, 3]], axis=1), 1, atol=1e-5)
