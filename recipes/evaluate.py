"""Metrics of a model on a split: greedy lists from vLLM, once for each distinct prompt, scored once for each row.

    python -m recipes.evaluate --model MODEL --data data/sample/test.parquet --catalog data/sample/catalog.parquet \\
        --train data/sample/train.parquet --out outputs/evaluation

MODEL is a Hugging Face folder or id, or a run folder. OUT gets metrics.json, rows.parquet (for each row of the split:
sample_id, prompt_id, the text, its metrics) and generations.parquet, which is used again while the weights and the
sampling settings are the same. `--against OTHER_OUT` compares with an earlier evaluation row by row.
"""

import argparse
import hashlib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from convrec.catalog import Catalog, load_catalog
from convrec.checkpoints import resolve_model
from convrec.errors import UserError
from convrec.generation import generate
from convrec.matching import MODES, Matcher
from convrec.metrics import PROTOCOLS, evaluate_row, paired, popularity_baseline, summarise
from convrec.ranks import Item, format_item, parse_items
from convrec.report import Example, mark_list, table_row, text_table
from convrec.schema import RL_SCHEMA, split_prompt, validate_rl_table

FOREIGN_CATALOG = 0.1  # share of ground truth outside the catalog from which on it looks like another dataset's
KEY = b"convrec.generation_key"
GENERATIONS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("prompt_truncated", pa.bool_()),
    ]
)
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.json", "*.model", "*.jinja", "*.txt")


def evaluate(
    *,
    model: str | Path,
    data: str | Path,
    catalog: str | Path,
    out: str | Path,
    train: str | Path | None = None,
    num_items: int = 20,
    ks: Sequence[int] = (5, 10, 20),
    protocols: Sequence[str] = ("paper",),
    matching: str = "fuzzy",
    limit: int | None = None,
    seed: int = 3407,
    max_prompt_length: int = 2048,
    max_response_length: int = 1024,
    against: str | Path | None = None,
    tensor_parallel: int = 1,
    progress: bool = True,
) -> dict[str, Any]:
    """Evaluate and write OUT's three files; returns what metrics.json holds.

    {"settings", "results": {protocol: {"model": summary, "popularity": summary}}, "generation", "warnings", "paired"}.
    A summary is metrics.summarise's with repeats_per_list and lists_with_repeats. "popularity" needs `train`, "paired"
    (this model minus the other) needs `against`. Row metrics in rows.parquet are of the first protocol; further ones
    are prefixed with theirs. Raises UserError for bad input, before vLLM starts.
    """
    out = Path(out)
    for k in ks:
        if not 1 <= k <= num_items:
            raise UserError(f"--ks {k}: must be from 1 to the {num_items} items of a list (--num-items)")
    model_path = resolve_model(model)
    items_of_catalog = load_catalog(catalog)
    report = validate_rl_table(data, allow_empty_ground_truth=True, dated=items_of_catalog.dated)
    rows = pq.read_table(data, columns=RL_SCHEMA.names).to_pylist()[:limit]
    if not any(row["groundtruth_with_release_year"] for row in rows):
        raise UserError(f"{data}: no row has ground truth (groundtruth_with_release_year); there is nothing to score")
    matcher = Matcher(items_of_catalog, matching)
    warnings = [*report.warnings, *_catalog_warnings(items_of_catalog, rows, matcher, data, catalog)]
    popular = _popular_items(train, items_of_catalog, num_items) if train else None
    other = _read_other(Path(against), protocols[0], ks) if against else None

    prompt_ids = [prompt_id(row["prompt"]) for row in rows]
    prompts = dict(zip(prompt_ids, (row["prompt"] for row in rows), strict=True))
    settings = {
        "max_tokens": max_response_length,
        "max_prompt_tokens": max_prompt_length,
        "temperature": 0.0,
        "seed": seed,
    }
    start = time.monotonic()
    answers, generated = _generations(model_path, prompts, settings, out, tensor_parallel, progress)
    seconds = time.monotonic() - start

    responses = [parse_items(answers[prompt]["text"], dated=items_of_catalog.dated) for prompt in prompt_ids]
    results: dict[str, dict[str, Any]] = {}
    scored: dict[str, list[dict[str, Any]]] = {}
    for protocol in protocols:
        scored[protocol] = _score(rows, responses, matcher, protocol, ks)
        results[protocol] = {"model": _summary(scored[protocol], ks, prompt_ids, seed, num_items)}
        if popular is not None:
            baseline = _score(rows, [popular] * len(rows), matcher, protocol, ks)
            results[protocol]["popularity"] = _summary(baseline, ks, prompt_ids, seed, num_items)

    metrics: dict[str, Any] = {
        "settings": {
            "model": str(model),
            "model_path": model_path,
            "data": str(data),
            "catalog": str(catalog),
            "train": str(train) if train else None,
            "num_items": num_items,
            "ks": list(ks),
            "protocols": list(protocols),
            "matching": matching,
            "limit": limit,
            **settings,
        },
        "results": results,
        "generation": {
            "prompts": len(prompts),
            "generated": generated,
            "seconds": round(seconds, 2),
            "truncated_prompts": sum(answer["prompt_truncated"] for answer in answers.values()),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers.values()),
        },
        "warnings": warnings,
    }
    if other is not None:
        metrics["paired"] = _paired(other, rows, scored[protocols[0]], prompt_ids, ks, seed) | {"against": str(against)}
    _write_rows(out / "rows.parquet", rows, prompt_ids, answers, scored)
    _write_whole(out / "metrics.json", json.dumps(_without_nan(metrics), indent=2, ensure_ascii=False) + "\n")
    return metrics


def prompt_id(prompt: Sequence[Mapping[str, str]]) -> str:
    """Stable name of a conversation: equal prompts have equal ids."""
    return hashlib.sha256(json.dumps([[m["role"], m["content"]] for m in prompt]).encode()).hexdigest()[:16]


def examples(
    before: str | Path,
    after: str | Path,
    *,
    catalog: str | Path,
    data: str | Path,
    names: tuple[str, str],
    count: int = 3,
) -> list[Example]:
    """`count` conversations with the lists of two evaluations of the same split, for the report: from the largest gain
    in NDCG to the largest loss in even steps, so that what got worse is shown too."""
    settings = json.loads((Path(after) / "metrics.json").read_text())["settings"]
    ndcg = f"ndcg@{max(settings['ks'])}"
    old, new = (
        {row["sample_id"]: row for row in pq.read_table(Path(d) / "rows.parquet").to_pylist()} for d in (before, after)
    )
    rows = {row["sample_id"]: row for row in pq.read_table(data, columns=RL_SCHEMA.names).to_pylist()}
    matcher = Matcher(load_catalog(catalog), settings["matching"])
    gains = {
        sample: new[sample][ndcg] - old[sample][ndcg]
        for sample in new
        if sample in old
        and rows[sample]["groundtruth_with_release_year"]
        and max(new[sample][ndcg], old[sample][ndcg]) > 0
    }
    ordered = sorted(gains, key=lambda sample: (-gains[sample], sample))
    places = [round(index * (len(ordered) - 1) / max(1, count - 1)) for index in range(count)] if ordered else []
    chosen = []
    for place in dict.fromkeys(places):
        row = rows[ordered[place]]
        truth, gain = [(title, year) for title, year in row["groundtruth_with_release_year"]], gains[ordered[place]]
        label = {0: "the largest gain", len(ordered) - 1: "the largest loss"}.get(place, "in between")
        chosen.append(
            Example(
                split_prompt(row["prompt"][0]["content"])[1],
                truth,
                {
                    name: mark_list(
                        side[ordered[place]]["text"], matcher, truth, row["seen_titles"], settings["num_items"]
                    )
                    for name, side in zip(names, (old, new), strict=True)
                },
                f"{label} ({ndcg.replace('ndcg', 'NDCG')} {gain:+.2f})",
            )
        )
    return chosen


# ---- parts


def _catalog_warnings(
    catalog: Catalog, rows: Sequence[Mapping[str, Any]], matcher: Matcher, data: str | Path, path: str | Path
) -> list[str]:
    warnings = []
    if catalog.problems:
        warnings.append(f"{path}: {len(catalog.problems)} entries cannot be matched, the first: {catalog.problems[0]}")
    truths = [
        (title, year)
        for row in rows
        for title, raw_year in row["groundtruth_with_release_year"] or []
        if (year := catalog.year_of(raw_year)) is not None
    ]
    missing = [truth for truth in truths if matcher.identify(*truth).index < 0]
    if len(missing) > FOREIGN_CATALOG * len(truths):
        title, year = missing[0]
        warnings.append(
            f"{len(missing)} of {len(truths)} ground truths of {data} are not in {path} (the first: "
            f"{format_item(title, year)}): is it another dataset's catalog?"
        )
    return warnings


def _popular_items(train: str | Path, catalog: Catalog, num_items: int) -> list[Item | None]:
    validate_rl_table(train, allow_empty_ground_truth=True)
    column = "groundtruth_with_release_year"
    return list(popularity_baseline(pq.read_table(train, columns=[column]).to_pylist(), catalog, num_items))


def _generation_key(model_path: str, settings: Mapping[str, Any]) -> str:
    """Changes when a file of the checkpoint or a sampling setting does. A Hugging Face id stands for itself."""
    folder = Path(model_path)
    files: list[tuple[str, int, int]] = []
    if folder.is_dir():
        found = {path for pattern in WEIGHT_FILES for path in folder.glob(pattern)}
        files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(found)]
    described = json.dumps([str(folder.resolve()) if files else model_path, files, dict(settings)], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()


def _generations(
    model_path: str,
    prompts: Mapping[str, list[dict[str, str]]],
    settings: Mapping[str, Any],
    out: Path,
    tensor_parallel: int,
    progress: bool,
) -> tuple[dict[str, dict[str, Any]], int]:
    """prompt_id -> answer for all prompts, and how many had to be generated now."""
    path, key = out / "generations.parquet", _generation_key(model_path, settings)
    known: dict[str, dict[str, Any]] = {}
    if path.exists():
        table = pq.read_table(path)
        if (table.schema.metadata or {}).get(KEY) == key.encode():
            known = {answer["prompt_id"]: answer for answer in table.to_pylist()}
    missing = [name for name in prompts if name not in known]
    if missing:
        fresh = generate(
            model_path,
            [prompts[name] for name in missing],
            tensor_parallel=tensor_parallel,
            log_file=out / "vllm.log",
            progress=progress,
            **settings,
        )
        for row in fresh:
            known[missing[row.prompt_index]] = {
                "prompt_id": missing[row.prompt_index],
                "text": row.text,
                "token_ids": row.token_ids,
                "finish_reason": row.finish_reason,
                "prompt_tokens": row.prompt_tokens,
                "prompt_truncated": row.prompt_truncated,
            }
        table = pa.Table.from_pylist(list(known.values()), GENERATIONS.with_metadata({KEY: key.encode()}))
        _write_table(path, table)
    return {name: known[name] for name in prompts}, len(missing)


def _score(
    rows: Sequence[Mapping[str, Any]],
    responses: Sequence[Sequence[Item | None]],
    matcher: Matcher,
    protocol: str,
    ks: Sequence[int],
) -> list[dict[str, Any]]:
    scored = []
    for row, items in zip(rows, responses, strict=True):
        truth = [(title, year) for title, year in row["groundtruth_with_release_year"] or []]
        result = evaluate_row(items, truth, row["seen_titles"], matcher, protocol, ks)
        result["repeats"] = len(result["catalog_rows"]) - len(set(result["catalog_rows"]))
        scored.append(result)
    return scored


def _summary(
    scored: Sequence[Mapping[str, Any]], ks: Sequence[int], contexts: Sequence[str], seed: int, num_items: int
) -> dict[str, Any]:
    repeats = [row["repeats"] for row in scored if row["num_truth"]]
    return summarise(scored, ks, contexts, seed, num_items) | {
        "repeats_per_list": sum(repeats) / len(repeats),
        "lists_with_repeats": sum(count > 0 for count in repeats),
    }


def _read_other(folder: Path, protocol: str, ks: Sequence[int]) -> dict[str, dict[str, Any]]:
    for name in ("metrics.json", "rows.parquet"):
        if not (folder / name).exists():
            raise UserError(f"--against {folder}: no {name}; give the --out folder of an earlier evaluation")
    settings = json.loads((folder / "metrics.json").read_text())["settings"]
    if settings["protocols"][0] != protocol or not set(ks) <= set(settings["ks"]):
        raise UserError(
            f"--against {folder}: it was scored with protocol {settings['protocols'][0]} at {settings['ks']}, "
            f"this with {protocol} at {list(ks)}; evaluate both alike"
        )
    return {row["sample_id"]: row for row in pq.read_table(folder / "rows.parquet").to_pylist()}


def _paired(
    other: Mapping[str, Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    scored: Sequence[Mapping[str, Any]],
    contexts: Sequence[str],
    ks: Sequence[int],
    seed: int,
) -> dict[str, Any]:
    places = [
        place
        for place, row in enumerate(rows)
        if scored[place]["num_truth"] and other.get(row["sample_id"], {}).get("prompt_id") == contexts[place]
    ]
    if not places:
        raise UserError("--against: no row of that evaluation is in this split; compare evaluations of the same data")
    names = [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in ks]
    before = [{name: other[rows[place]["sample_id"]][name] for name in names} for place in places]
    after = [{name: scored[place][name] for name in names} for place in places]
    found = paired(before, after, ks, [contexts[place] for place in places], seed)
    return {"n": len(places)} | {name: {"mean": found[name]["mean"], "se": found[name]["se"]} for name in names}


def _write_rows(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    prompt_ids: Sequence[str],
    answers: Mapping[str, Mapping[str, Any]],
    scored: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    first, *others = scored
    table = []
    for place, row in enumerate(rows):
        answer = answers[prompt_ids[place]]
        record = {
            "sample_id": row["sample_id"],
            "prompt_id": prompt_ids[place],
            "text": answer["text"],
            "finish_reason": answer["finish_reason"],
        }
        record |= {name: value for name, value in scored[first][place].items() if name != "catalog_rows"}
        for protocol in others:
            values = scored[protocol][place].items()
            record |= {f"{protocol}/{name}": value for name, value in values if "@" in name}
        table.append(record)
    _write_table(path, pa.Table.from_pylist(table))


def _write_table(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    pq.write_table(table, partial)
    partial.replace(path)


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a number that does not exist (a standard error of one conversation) is null."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """What the command prints."""
    settings, generation = metrics["settings"], metrics["generation"]
    lines = []
    for protocol, results in metrics["results"].items():
        n, contexts = results["model"]["n"], results["model"]["num_contexts"]
        without = results["model"]["without_ground_truth"]
        lines.append(
            f"{settings['data']}: {n} rows, {contexts} conversations, protocol {protocol}"
            + (f"; {without} rows without ground truth left out" if without else "")
        )
        order = [name for name in ("popularity", "model") if name in results]
        lines.append(text_table([table_row(name, results[name], settings["ks"]) for name in order]))
        lines.append("")
    if pair := metrics.get("paired"):
        lines.append(f"minus {pair['against']}, {pair['n']} rows paired:")
        for name in (f"{metric}@{k}" for metric in ("recall", "ndcg") for k in settings["ks"]):
            mean, error = pair[name]["mean"], pair[name]["se"]
            lines.append(f"  {name:<10} {mean:+.4f} ±{error:.4f}" + (f"  ({mean / error:+.1f} se)" if error else ""))
        lines.append("")
    lines.append(
        f"{generation['generated']} of {generation['prompts']} prompts generated in {generation['seconds']:.0f} s, "
        f"the rest reused; {generation['truncated_prompts']} prompts shortened, "
        f"{generation['unfinished_responses']} responses cut off"
    )
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder or id, or a run folder")
    parser.add_argument("--data", required=True, help="split to score (parquet)")
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--train", help="training split, for the popularity baseline")
    parser.add_argument("--out", required=True, help="folder for metrics.json, rows.parquet, generations.parquet")
    parser.add_argument("--num-items", type=int, default=20, help="items a list should have")
    parser.add_argument("--ks", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--protocols", "--protocol", nargs="+", choices=PROTOCOLS, default=["paper"])
    parser.add_argument("--matching", choices=MODES, default="fuzzy")
    parser.add_argument("--limit", type=int, help="only the first rows")
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--max-prompt-length", type=int, default=2048)
    parser.add_argument("--max-response-length", type=int, default=1024)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--against", help="--out folder of an earlier evaluation to compare with, row by row")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        metrics = evaluate(**vars(options))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for warning in metrics["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    print(format_metrics(metrics))
    print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
