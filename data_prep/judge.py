"""Preferences and ratings -> the judges' parquet (convrec.judges.schema).

    python -m data_prep.judge --mode pairwise --input preferences.jsonl --out data/judge

Input: JSONL or parquet; each record is one of
    prompt, chosen, rejected              texts, or messages as preference sets have them
    prompt, response_a, response_b, preferred ("A" | "B" | "tie")
    prompt, response, helpfulness (0-4)   pointwise only
    input, output, source                 the schema itself
and may have `source` and `reason` (why; for demonstrations). `prompt` is a text or messages.

pairwise   Ties (and chosen = rejected) are left out and counted. Each response is A in exactly half of the rows, drawn
           with the seed, whatever the order in the file.
pointwise  Of a preference, the better response becomes a row with --chosen-score, the worse one with --rejected-score.

With --model, rows whose prompt has more than --max-prompt-length tokens in that model's chat template are left out and
counted. OUT gets train.parquet, validation.parquet, test.parquet (the rows of one query stay together) and
summary.json with the counts.
"""

import argparse
import hashlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.data.chat import fits, render_prompt
from convrec.errors import UserError
from convrec.files import folder_written_whole, write_json
from convrec.judges.prompt import MODES, TEMPLATE_SETTINGS, query_text
from convrec.judges.schema import judge_schema, label_of, make_row, prompt_of
from data_prep.judge_records import Rating, Record, is_tie, load

SPLITS = ("train", "validation", "test")


# ---- rows


def rows_of(
    items: Sequence[tuple[Record, str]], mode: str, scores: tuple[int, int]
) -> tuple[list[dict[str, Any]], int]:
    """(rows, ties left out); pairwise rows still have the better response as A."""
    rows, ties = [], 0
    for item, source in items:
        if isinstance(item, dict):
            if mode == "pairwise" and is_tie(item):
                ties += 1
                continue
            texts = [output["answer"]["content"] for output in item["output"]]
            label = label_of(item, mode)
            if label == "B":
                texts, label = texts[::-1], "A"
            rows.append(make_row(item["input"], texts, label, source, item["reason"]))
        elif isinstance(item, Rating):
            rows.append(make_row(item.messages, [item.response], item.score, source, item.reason))
        elif item.tie:
            ties += 1
        elif mode == "pairwise":
            rows.append(make_row(item.messages, [item.better, item.worse], "A", source, item.reason))
        else:
            rows.append(make_row(item.messages, [item.better], scores[0], source))
            rows.append(make_row(item.messages, [item.worse], scores[1], source))
    return rows, ties


def balance_order(rows: Sequence[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """Swap A and B in half of the pairwise rows, drawn with the seed (of an odd number, the larger half keeps A)."""
    swap = set(random.Random(seed).sample(range(len(rows)), len(rows) // 2))
    return [swapped(row) if place in swap else row for place, row in enumerate(rows)]


def swapped(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same comparison with A and B in the other order."""
    label = {"A": "B", "B": "A"}[label_of(row, "pairwise")]
    texts = [output["answer"]["content"] for output in row["output"]][::-1]
    return make_row(row["input"], texts, label, row["source"], row["reason"])


def keep_short(
    rows: Sequence[dict[str, Any]], mode: str, model: str, max_prompt_length: int
) -> tuple[list[dict[str, Any]], int]:
    """(rows whose rendered prompt fits, how many do not)."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"--model {model}: its tokenizer cannot be loaded ({reason}); give a folder or a hub id"
        ) from None
    kept = [
        row
        for row in rows
        if fits(tokenizer, render_prompt(tokenizer, prompt_of(row, mode), **TEMPLATE_SETTINGS), max_prompt_length)
    ]
    return kept, len(rows) - len(kept)


def split_rows(
    rows: Sequence[dict[str, Any]], shares: Mapping[str, float], seed: int
) -> dict[str, list[dict[str, Any]]]:
    """Rows by split. A query's hash with the seed decides, so that more data never moves a query to another split."""
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in SPLITS}
    for row in rows:
        digest = hashlib.sha256(f"{seed}\n{query_text(row['input'])}".encode()).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64
        name = "test" if place < shares["test"] else "validation" if place < sum(shares.values()) else "train"
        parts[name].append(row)
    return parts


# ---- command


def convert(
    mode: str,
    inputs: Sequence[str | os.PathLike],
    out: str | os.PathLike,
    *,
    scores: tuple[int, int] = (4, 0),
    validation_share: float = 0.1,
    test_share: float = 0.1,
    model: str | None = None,
    max_prompt_length: int = 4096,
    seed: int = 3407,
) -> dict[str, Any]:
    """Write OUT whole or not at all and return its summary. Raises UserError for bad records or when OUT exists."""
    folder = Path(out)
    if folder.exists():
        raise UserError(f"--out {folder} exists and is not overwritten: choose another folder or move it away")
    if min(validation_share, test_share) < 0 or validation_share + test_share >= 1:
        raise UserError(
            "--validation-share and --test-share: together less than 1, so that something is left to train on"
        )
    items = [item for path in inputs for item in load(path, mode)]
    rows, ties = rows_of(items, mode, scores)
    too_long = 0
    if model:
        rows, too_long = keep_short(rows, mode, model, max_prompt_length)
    if not rows:
        raise UserError(f"{', '.join(map(str, inputs))}: no row is left ({ties} ties, {too_long} prompts too long)")
    parts = split_rows(rows, {"validation": validation_share, "test": test_share}, seed)
    if mode == "pairwise":
        parts = {name: balance_order(part, seed) for name, part in parts.items()}
    summary = {
        "mode": mode,
        "inputs": [Path(path).name for path in inputs],
        "records": len(items),
        "ties_left_out": ties,
        "too_long_left_out": too_long if model else None,
        "rows": {name: len(part) for name, part in parts.items()},
        "labels": {name: _count(label_of(row, mode) for row in part) for name, part in parts.items()},
        "seed": seed,
    }
    with folder_written_whole(folder) as partial:
        for name, part in parts.items():
            if part:
                pq.write_table(pa.Table.from_pylist(part, judge_schema(mode)), partial / f"{name}.parquet")
        write_json(partial / "summary.json", summary)
    return summary


def _count(labels: Iterator[Any]) -> dict[str, int]:
    return {str(label): count for label, count in sorted(Counter(labels).items())}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m data_prep.judge", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mode", required=True, choices=MODES)
    parser.add_argument("--input", required=True, nargs="+", help="JSONL or parquet files")
    parser.add_argument("--out", required=True, help="folder to write; must not exist")
    parser.add_argument("--chosen-score", type=int, choices=range(5), default=4, metavar="0-4")
    parser.add_argument("--rejected-score", type=int, choices=range(5), default=0, metavar="0-4")
    parser.add_argument("--validation-share", type=float, default=0.1)
    parser.add_argument("--test-share", type=float, default=0.1)
    parser.add_argument("--model", help="leave out prompts too long in this model's chat template")
    parser.add_argument("--max-prompt-length", type=int, default=4096, help="tokens")
    parser.add_argument("--seed", type=int, default=3407)
    options = vars(parser.parse_args(argv))
    scores = options.pop("chosen_score"), options.pop("rejected_score")
    try:
        summary = convert(options.pop("mode"), options.pop("input"), options.pop("out"), scores=scores, **options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(summary, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
