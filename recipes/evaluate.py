"""Metrics of a model on a split: greedy lists from vLLM, once for each distinct prompt, scored once for each row.

    python -m recipes.evaluate --model MODEL --data data/sample/test.parquet --catalog data/sample/catalog.parquet \\
        --train data/sample/train.parquet --out outputs/evaluation

MODEL is a Hugging Face folder or id, a run folder (its newest checkpoint; RUN/global_step_N names one), a LoRA adapter,
or `api:NAME`, a model behind the OpenAI-compatible endpoint of LLM_BASE_URL and LLM_API_KEY. OUT gets metrics.json,
rows.parquet (for each row of the split: sample_id, prompt_id, the text, its metrics) and generations.parquet, which is
used again while the contents of the checkpoint and the sampling settings are the same. `--against OTHER_OUT` compares
with an earlier evaluation row by row. With `--sweep`, MODEL is a run folder and all its checkpoints are evaluated, the
start model as step 0 and the newest one included. With `--judge pairwise` or `--judge pointwise`, MODEL is a judge
(recipes.judge.evaluation).
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from convrec.checkpoints import resolve_model
from convrec.errors import UserError
from convrec.generations import Answer, model_answers
from convrec.matching import MODES
from convrec.metrics import KS, PROTOCOLS
from convrec.ranks import parse_items
from convrec.report import table_row, text_table
from recipes.evaluation.baselines import API, BASELINES, api_answers, baseline_lists
from recipes.evaluation.paper import paper_table
from recipes.evaluation.scoring import compare, read_other, score, summary, write_json, write_rows
from recipes.evaluation.split import Split, read_split, read_training_rows


def evaluate(
    *,
    model: str | Path,
    data: str | Path,
    catalog: str | Path,
    out: str | Path,
    train: str | Path | None = None,
    baselines: Sequence[str] = ("popularity",),
    num_items: int = 20,
    ks: Sequence[int] = KS,
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
    A summary is scoring.summary's. The `baselines` need `train` and are left out without it, "paired" (this model minus
    the other) needs `against`. Row metrics in rows.parquet are of the first protocol; further ones are prefixed with
    theirs. Raises UserError for bad input, before vLLM starts.
    """
    out = Path(out)
    for k in ks:
        if not 1 <= k <= num_items:
            raise UserError(f"--ks {k}: must be from 1 to the {num_items} items of a list (--num-items)")
    model_path = str(model) if str(model).startswith(API) else resolve_model(model)
    split = read_split(data, catalog, matching, limit)
    train_rows = read_training_rows(train, split.catalog) if train else []
    lists = {name: baseline_lists(name, split, train_rows, num_items) for name in baselines if train}
    other = read_other(Path(against), protocols[0], ks) if against else None

    settings = {
        "max_tokens": max_response_length,
        "max_prompt_tokens": max_prompt_length,
        "temperature": 0.0,
        "seed": seed,
    }
    start = time.monotonic()
    answers, generated = _answers(model_path, split, out, settings, tensor_parallel, progress)
    seconds = time.monotonic() - start

    dated = split.catalog.dated
    lists = {"model": [parse_items(answers[prompt]["text"], dated=dated) for prompt in split.prompt_ids]} | lists
    scored = {
        protocol: {name: score(split, some, protocol, ks) for name, some in lists.items()} for protocol in protocols
    }
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
        "results": {
            protocol: {name: summary(some, split, ks, seed, num_items) for name, some in by_name.items()}
            for protocol, by_name in scored.items()
        },
        "generation": {
            "prompts": len(answers),
            "generated": generated,
            "seconds": round(seconds, 2),
            "truncated_prompts": sum(answer["prompt_truncated"] for answer in answers.values()),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers.values()),
        },
        "warnings": split.warnings,
    }
    by_model = {protocol: by_name["model"] for protocol, by_name in scored.items()}
    if other is not None:
        found = compare(other, split, by_model[protocols[0]], ks, seed)
        metrics["paired"] = found | {"against": str(against)}
    write_rows(out / "rows.parquet", split, answers, by_model)
    write_json(out / "metrics.json", metrics)
    return metrics


def _answers(
    model: str, split: Split, out: Path, settings: dict[str, Any], tensor_parallel: int, progress: bool
) -> tuple[dict[str, Answer], int]:
    path = out / "generations.parquet"
    if model.startswith(API):
        return api_answers(model.removeprefix(API), split.prompts, path, **settings)
    return model_answers(model, split.prompts, path, tensor_parallel=tensor_parallel, progress=progress, **settings)


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
        order = sorted(results, key=lambda name: name == "model")
        lines.append(text_table([table_row(name, results[name], settings["ks"]) for name in order]))
        lines.append("")
    if pair := metrics.get("paired"):
        lines.append(f"minus {pair['against']}, {pair['n']} rows paired:")
        for name in (f"{metric}@{k}" for metric in ("recall", "ndcg") for k in settings["ks"]):
            mean, error, chance = (pair[name][key] for key in ("mean", "se", "p"))
            lines.append(f"  {name:<10} {mean:+.4f} ±{error:.4f}  p {chance:.4f}")
        lines.append("")
    lines.append(
        f"{generation['generated']} of {generation['prompts']} prompts generated in {generation['seconds']:.0f} s, "
        f"the rest reused; {generation['truncated_prompts']} prompts shortened, "
        f"{generation['unfinished_responses']} responses cut off"
    )
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.evaluate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="Hugging Face folder or id, run folder, LoRA adapter, api:NAME")
    parser.add_argument("--data", required=True, help="split to score (parquet)")
    parser.add_argument("--catalog", required=True)
    parser.add_argument("--train", help="training split, for the baselines")
    parser.add_argument("--out", help="folder for the results; --sweep: RUN/evaluation/<name of the split>")
    parser.add_argument("--baselines", nargs="*", choices=BASELINES, default=["popularity"])
    parser.add_argument("--paper", action="store_true", help="print the paper's figures beside")
    parser.add_argument("--num-items", type=int, default=20, help="items a list should have")
    parser.add_argument("--ks", type=int, nargs="+", default=list(KS))
    parser.add_argument("--protocols", "--protocol", nargs="+", choices=PROTOCOLS, default=["paper"])
    parser.add_argument("--matching", choices=MODES, default="fuzzy")
    parser.add_argument("--limit", type=int, help="only the first rows")
    parser.add_argument("--seed", type=int, default=3407)
    parser.add_argument("--max-prompt-length", type=int, default=2048)
    parser.add_argument("--max-response-length", type=int, default=1024)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--against", help="--out folder of an earlier evaluation to compare with, row by row")
    parser.add_argument("--sweep", action="store_true", help="every checkpoint of the run folder, step 0 included")
    parser.add_argument("--start", help="--sweep: the start model (step 0), where the run's config names another place")
    options = parser.parse_args(arguments)
    if not options.sweep and not options.out:
        parser.error("--out is needed (with --sweep it has a default)")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if any(argument.split("=")[0] == "--judge" for argument in arguments):
        from recipes.judge.evaluation import main as evaluate_a_judge

        return evaluate_a_judge(arguments)
    options = vars(parse_arguments(arguments))
    sweep, paper, start = (options.pop(name) for name in ("sweep", "paper", "start"))
    try:
        if sweep:
            from recipes.evaluation.sweep import sweep_run

            run, out = options.pop("model"), options.pop("out")
            table = sweep_run(Path(run), out, start, **options)
            print(table)
        else:
            metrics = evaluate(**options)
            for warning in metrics["warnings"]:
                tqdm.write(f"warning: {warning}", file=sys.stderr)
            print(format_metrics(metrics))
            print(f"written to {options['out']}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if paper:
        print("\n" + paper_table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
