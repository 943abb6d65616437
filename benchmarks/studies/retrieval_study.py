"""Does reading what retrieval finds help a model, and does Rank-GRPO add to it? The plan: notes/retrieval.md.

    python -m benchmarks.studies.retrieval_study --data sample --out outputs/retrieval_study/sample
    python -m benchmarks.studies.retrieval_study --data hard --out outputs/retrieval_study/hard
    python -m benchmarks.studies.retrieval_study --data path/to/redial --out outputs/retrieval_study/redial

Data, retrieval, tables with candidates, a model, SFT and Rank-GRPO (of free and of constrained lists) of each seed
without candidates, with them, and with them from a start that can read (reading_start.py); their free and constrained
lists for the test rows, each alone and fused by a weight of its own from the validation rows. What is there is not made
again: the same command goes on.
OUT/table.md has what is there so far. --smallest: all of it in a few minutes, which says nothing.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.studies import reading_start
from benchmarks.studies.sample_ceiling import check_sample
from convrec.base.files import read_json, write_text
from convrec.inference.generate import reuse_engines
from convrec.runs.folder import latest_step
from convrec.titles.catalog import load_catalog
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate
from recipes.experiments.local_runs import make_evaluation_options, train
from recipes.experiments.matrix_runs import MatrixRun
from recipes.retrieval import fit_retrieval, write_candidates
from recipes.tiny_model import make_tiny_model, read_texts, read_titles

COUNT, ITEMS = 50, 20
SEEDS = (3407, 3408, 3409)
TABLES = ("train", "validation", "test", "sft_train", "sft_validation")
SIZES = {"validation": 1000, "test": 5000, "sft": 300, "rank_grpo": 150}
SMALLEST = {"validation": 20, "test": 20, "sft": 2, "rank_grpo": 2}
READS = "_reads"
PROMPT = {"": 256, "_candidates": 512, READS: 512}  # tokens, of 50 titles some 300
TITLES = "sft_titles"  # a table that ReDial's data have, and the start that is trained on it
CONSTRAINED = "rank_grpo_constrained"
VARIANTS = [f"{method}{further}" for method in ("sft", "rank_grpo", CONSTRAINED) for further in PROMPT]
EVALUATED = ("ndcg@20", "recall@20", "coverage", "popularity_lift", "cold_share")


def prepare(data: str, out: Path, sizes: Mapping[str, int], stages: Sequence[reading_start.Stage]) -> None:
    """Make data, retrieval and initial models; what is there is not made again.

    Args:
        data: "sample", "hard", or a folder of ReDial's tables.
        out: folder of the study.
        sizes: rows of validation and test, steps of SFT and Rank-GRPO.
        stages: of teaching a model to read.
    """
    folder = out / "data"
    if not folder.exists():
        if data in ("sample", "hard"):
            counts = [f"--{name}={sizes[name]}" for name in ("validation", "test")]
            requests = ["--requests", "hard"] if data == "hard" else []
            command = ["recipes", "data", "sample", "--out", str(folder), *counts, *requests]
        else:
            # held out before rows without any of the titles go: some 1,000 are left
            given = ["--titles", "500", "--num-items", str(ITEMS), "--test-rows", "1800"]
            command = ["benchmarks.studies.retrieval", "--source", data, "--out", str(folder), *given]
        subprocess.run([sys.executable, "-m", *command], check=True)
    train_file, validation, catalog = (folder / f"{name}.parquet" for name in ("train", "validation", "catalog"))
    if not (out / "retrieval").exists():
        fit_retrieval([train_file], validation, catalog, out / "retrieval")
    if not (out / "data_candidates").exists():
        tables = [folder / f"{name}.parquet" for name in TABLES]
        write_candidates(out / "retrieval", catalog, tables, out / "data_candidates", COUNT)
    if not (out / "model").exists():
        make_tiny_model(out / "model", read_texts([folder]), read_titles([folder]))
    if not (out / "data_reads").exists():
        reading_start.write_demonstrations(out / "data_candidates", ITEMS, out / "data_reads")
    if not (out / "model_tied").exists():
        make_tiny_model(out / "model_tied", read_texts([folder]), read_titles([folder]), tie_word_embeddings=True)
    if not (out / "model_reads").exists():
        lines = load_catalog(catalog).lines
        reading_start.teach_to_read(out / "model_tied", folder, lines, ITEMS, out / "model_reads", stages)
    if (folder / f"{TITLES}.parquet").exists():
        start = titles_run(out, sizes)
        if latest_step(out / TITLES) < int(start.variables["TOTAL_STEPS"]):
            train(start, out)


def titles_run(out: Path, sizes: Mapping[str, int]) -> MatrixRun:
    """Return the run from which all seeds' SFT without candidates starts.

    From conversations alone, a model stays long at popular lists.

    Args:
        out: folder of the study.
        sizes: as for `prepare`.
    """
    variables = {"MODEL_PATH": str(out / "model"), "LR": "4e-3", "MAX_LENGTH": "256", "TRAIN_BATCH_SIZE": "32"}
    variables |= {"SEED": str(SEEDS[0]), "TOTAL_EPOCHS": "1000", **_files(out / "data", "sft_")}
    variables |= {"TRAIN_FILE": str(out / "data" / f"{TITLES}.parquet")} | _steps(2 * sizes["sft"])
    return MatrixRun(TITLES, TITLES, "sft", None, variables)


def runs(out: Path, sizes: Mapping[str, int], seeds: tuple[int, ...] = SEEDS) -> list[MatrixRun]:
    """Return SFT and Rank-GRPO on it (with free and with constrained lists), without and with candidates, of each seed.

    Args:
        out: folder of the study.
        sizes: as for `prepare`.
        seeds: of the runs.
    """
    found, titles = [], out / "data" / f"{TITLES}.parquet"
    for seed in seeds:
        for further, tokens in PROMPT.items():
            common = {"SEED": str(seed), "TOTAL_EPOCHS": "1000", "SAVE_KEEP": "1", "TRAIN_BATCH_SIZE": "16"}
            common |= {"CANDIDATES": str(COUNT if further else 0)}
            model, rate, times = ("model_reads", "1e-3", 3) if further == READS else ("model", "4e-3", 1)
            of_sft = common | _steps(times * sizes["sft"]) | _files(out / f"data{further}", "sft_")
            of_sft |= {"MODEL_PATH": str(out / model), "LR": rate, "MAX_LENGTH": str(tokens + 128)}
            of_rl = common | _steps(sizes["rank_grpo"]) | _files(_data(out, further), "")
            of_rl |= {"CATALOG_FILE": str(out / "data" / "catalog.parquet"), "LR": "1e-4", "ROLLOUT_N": "8"}
            of_rl |= {"KL_LOSS_COEF": "0.01", "MAX_PROMPT_LENGTH": str(tokens), "MAX_RESPONSE_LENGTH": "100"}
            tables: list[str] = []
            if not further and titles.exists():  # as in ranks/redial.yaml
                of_sft |= {"MODEL_PATH": str(out / TITLES), "LR": "3e-3", "TRAIN_BATCH_SIZE": "32"}
                tables = [f"data.train_files=[{of_sft['TRAIN_FILE']},{titles}]"]
            start, few = f"sft{further}-s{seed}", ["data.val_max_samples=128"]
            found.append(MatrixRun(start, f"sft{further}", "sft", None, of_sft, tables))
            for method, more in (("rank_grpo", {}), (CONSTRAINED, {"CONSTRAINED": "1"})):
                variant = f"{method}{further}"
                found.append(MatrixRun(f"{variant}-s{seed}", variant, "rank_grpo", start, of_rl | more, few))
    return found


def _data(out: Path, further: str) -> Path:
    """Tables with the prompts that a model reads."""
    return out / ("data_candidates" if further else "data")


def _files(data: Path, prefix: str) -> dict[str, str]:
    names = (("TRAIN_FILE", "train"), ("VAL_FILE", "validation"))
    return {variable: str(data / f"{prefix}{split}.parquet") for variable, split in names}


def _steps(count: int) -> dict[str, str]:
    return {"TOTAL_STEPS": str(count), "SAVE_FREQ": str(max(1, count // 3)), "TEST_FREQ": str(count)}


def evaluations(run: MatrixRun, out: Path) -> list[dict[str, Any]]:
    """Return the options of a run's two evaluations.

    Args:
        run: the run.
        out: folder of the study.

    Returns:
        On validation rows, where the weight of the fusion is chosen; then on test rows.
    """
    further = run.variant.removeprefix(CONSTRAINED).removeprefix(run.recipe)
    data, folder, weighed = _data(out, further), out / "evaluation" / "validation", out / "weighed" / run.name
    files = {"catalog": str(out / "data" / "catalog.parquet"), "train": str(out / "data" / "train.parquet")}
    settings = {**files, "retrieval": str(weighed), "constrained": True, "max_prompt_length": PROMPT[further]}
    settings |= {"num_items": ITEMS, "ks": (5, 10, 20), "max_response_length": 100}
    chosen = {"data": str(data / "validation.parquet"), "out": str(folder / run.name), "against": None, "weigh": True}
    test = {"data": str(data / "test.parquet")}  # of Rank-GRPO against its start
    return [make_evaluation_options(run, out, settings | further_one) for further_one in (chosen, test)]


def table(out: Path, given: list[MatrixRun]) -> str:
    """Return the table of what is evaluated so far.

    It has the baselines, then each model's lists, its constrained and its fused ones.

    Args:
        out: folder of the study.
        given: the runs, in the order of the table.
    """
    lines = [f"| lists | {' | '.join(EVALUATED)} | minus the retrieval, ndcg@20 | minus its start |"]
    lines.append("|---" * (len(EVALUATED) + 3) + "|")
    for run in given:
        file = out / "evaluation" / run.name / "metrics.json"
        if not file.exists():
            continue
        metrics = read_json(file)
        results, minus = metrics["results"]["paper"], metrics["minus"]
        for name in ("popularity", "retrieval") if len(lines) == 2 else ():
            lines.append(_line(name, results[name], "", ""))
        gain = metrics.get("paired", {}).get("ndcg@20")
        lines.append(_line(run.name, results["model"], _cell(minus["retrieval"]["ndcg@20"]), _cell(gain)))
        lines += [_line(f"{run.name}, {name}", results[name], "", "") for name in ("constrained", "fused")]
    return "\n".join(lines) + "\n"


def _cell(figure: Mapping[str, float] | None) -> str:
    return "" if not figure or figure["mean"] is None else f"{figure['mean']:.4f} ± {figure['se'] or 0:.4f}"


def _line(name: str, result: Mapping[str, Any], *further: str) -> str:
    return f"| {' | '.join([name, *(_cell(result.get(one)) for one in EVALUATED), *further])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, help="sample, hard, or a folder of ReDial's tables")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--smallest", action="store_true")
    given = parser.parse_args()
    out, sizes = given.out.resolve(), SMALLEST if given.smallest else SIZES
    prepare(given.data, out, sizes, reading_start.SMALLEST if given.smallest else reading_start.STAGES)
    ideal = check_sample(out / "data")["oracle"] if given.data == "sample" else None
    for run in runs(out, sizes, tuple(given.seeds)):
        if run.variant not in given.variants:
            continue
        if latest_step(out / run.name) < int(run.variables["TOTAL_STEPS"]):
            train(run, out)
        if (out / "evaluation" / run.name / "metrics.json").exists():
            continue
        if not (out / "weighed" / run.name).exists():
            shutil.copytree(out / "retrieval", out / "weighed" / run.name)
        with reuse_engines():
            for options in evaluations(run, out):
                evaluate(EvaluationOptions(**options))
        head = f"ideal ranking, validation rows: recall@20 {ideal[0]:.4f}, ndcg@20 {ideal[1]:.4f}\n\n" if ideal else ""
        write_text(out / "table.md", head + table(out, runs(out, sizes)))
    print(out / "table.md")


if __name__ == "__main__":
    main()
