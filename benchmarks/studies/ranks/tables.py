"""The tables of study.md."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.studies.ranks.comparisons import (
    BANDS,
    NDCG,
    RECALL,
    difference,
    equal_kl,
    first_passing,
    recall_by_band,
)
from benchmarks.studies.ranks.runs import BEYOND, Study, beyond_accuracy, mean_curve
from recipes.evaluation.scoring import load_rows

# the first minus the second
CONTRASTS = (
    ("rank_exp_inf", "grpo"),
    ("rank_log_decay", "grpo"),
    ("rank_exp_inf", "gspo"),
    ("rank_log_decay", "gspo"),
    ("rank_exp_inf", "rank_log_decay"),
    ("gspo", "grpo"),
    ("grpo_mu2", "grpo"),
    ("rank_exp_inf_mu2", "rank_exp_inf"),
    ("rank_exp_inf_mu2", "grpo_mu2"),
    ("rank_exp_inf_repair", "rank_exp_inf"),
    ("constrained_repair", "constrained"),
)
AT_EQUAL_KL = (*CONTRASTS[:4], *CONTRASTS[-2:])
FEWEST_ROWS = 50  # of a column of the table by number of relevant titles


def accuracy_table(study: Study) -> list[str]:
    lines = _header("on test", "seeds", NDCG, RECALL, *(f"recall {band}" for band in BANDS))
    for variant, evaluations in _evaluations(study).items():
        lines.append(_row(variant, len(evaluations), *_accuracy(evaluations)))
    return lines


def policy_table(study: Study) -> list[str]:
    """What the sampled lists of a run's last steps were like."""
    lines = _header("in training, at the end", "KL", "entropy", "repeats", "items")
    names = ("actor/kl", "actor/entropy", "rank_grpo/duplicates", "rank_grpo/num_items")
    for variant, of_seeds in study.runs.items():
        sampled = [[one.near(name, max(one.steps)) for name in names] for one in of_seeds.values()]
        lines.append(_row(variant, *(f"{value:.3f}" for value in np.mean(sampled, axis=0))))
    return lines


def beyond_table(study: Study) -> list[str]:
    """What the lists are besides relevant, of the seeds of which that was kept."""
    kept = {
        variant: [of for folder in evaluations if (of := beyond_accuracy(folder))]
        for variant, evaluations in _evaluations(study).items()
    }
    names = [name for name in BEYOND if all(name in of for found in kept.values() for of in found)]
    lines = _header("beyond accuracy", "seeds", *names)
    for variant, found in kept.items():
        if found:
            lines.append(_row(variant, len(found), *(_over_seeds([of[name] for of in found]) for name in names)))
    return lines


def gains_table(study: Study) -> list[str]:
    """What each variant gains over the starts of its seeds."""
    lines = _header("minus the start, at the last step", "seeds", NDCG, "sd of seeds", RECALL, "sd of seeds")
    for variant, of_seeds in study.runs.items():
        pairs = [(study.evaluation(one.run.name), study.starts[variant][seed]) for seed, one in of_seeds.items()]
        lines.append(_row(variant, len(pairs), *_difference(difference(pairs))))
    return lines


def contrasts_table(study: Study) -> list[str]:
    if not (shared := [*study.shared(CONTRASTS)]):
        return []
    lines = _header("at the last step", "seeds", NDCG, "sd of seeds", RECALL, "sd of seeds")
    for one, other, runs in shared:
        found = difference([(study.evaluation(a.run.name), study.evaluation(b.run.name)) for a, b in runs])
        lines.append(_row(f"{one} - {other}", len(runs), *_difference(found)))
    return lines


def equal_kl_table(study: Study) -> list[str]:
    if not (shared := [*study.shared(AT_EQUAL_KL)]):
        return []
    lines = _header("at equal KL", "seeds", "steps", "KL", NDCG, "sd of seeds", RECALL, "sd of seeds")
    for one, other, runs in shared:
        chosen = [(pair, equal_kl(pair[0].kl_of_step, pair[1].kl_of_step)) for pair in runs]
        steps = [" / ".join(str(of_pair[side]) for _, of_pair in chosen) for side in (0, 1)]
        kl = [np.mean([pair[side].kl_of_step[at[side]] for pair, at in chosen]) for side in (0, 1)]
        found = difference(
            [(study.checkpoint(pair[0], at[0]), study.checkpoint(pair[1], at[1])) for pair, at in chosen]
        )
        shown = f"{steps[0]}; {steps[1]}", f"{kl[0]:.3f}; {kl[1]:.3f}"
        lines.append(_row(f"{one} - {other}", len(runs), *shown, *_difference(found)))
    return lines


def wanted_table(study: Study) -> list[str]:
    """Rows apart by how many titles their user wanted: the fewer, the fewer ranks have signal."""
    if not (shared := [*study.shared(CONTRASTS[:2])]):
        return []
    some = next(iter(study.starts["grpo"].values()))
    wanted = [int(row["num_truth"]) for row in load_rows(some).values()]
    counts = [count for count in sorted(set(wanted)) if wanted.count(count) >= FEWEST_ROWS]
    lines = _header(
        "by number of relevant titles", "metric", *(f"{count}: {wanted.count(count)} rows" for count in counts)
    )
    for one, other, runs in shared:
        pairs = [(study.evaluation(a.run.name), study.evaluation(b.run.name)) for a, b in runs]
        found = [difference(pairs, {"num_truth": count}) for count in counts]
        for metric in (NDCG, RECALL):
            cells = (f"{of[metric][0]:+.4f} ± {of[metric][1]:.4f}" for of in found)
            lines.append(_row(f"{one} - {other}", metric, *cells))
    return lines


def levels_table(study: Study) -> list[str]:
    """The steps to half of what GRPO gains on validation, and to all of it."""
    if "grpo" not in study.runs:
        return []
    curves = {variant: mean_curve([*of.values()], "val/ndcg") for variant, of in study.runs.items()}
    grpo = curves["grpo"]
    first, last = grpo[min(grpo)], grpo[max(grpo)]
    levels = (first + last) / 2, last
    lines = _header("steps to NDCG on validation of", *(f"{level:.4f}" for level in levels))
    for variant, curve in curves.items():
        steps = [first_passing(curve, level) for level in levels]
        lines.append(_row(variant, *("not" if step is None else step for step in steps)))
    return lines


TABLES = (
    accuracy_table,
    gains_table,
    contrasts_table,
    equal_kl_table,
    policy_table,
    beyond_table,
    wanted_table,
    levels_table,
)


def _evaluations(study: Study) -> dict[str, list[Path]]:
    starts = {seed: folder for of_seeds in study.starts.values() for seed, folder in of_seeds.items()}
    runs = {variant: [study.evaluation(one.run.name) for one in of.values()] for variant, of in study.runs.items()}
    return {"the start": [*starts.values()], **runs}


def _header(*titles: object) -> list[str]:
    return ["", _row(*titles), "|---" * len(titles) + "|"]


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _accuracy(evaluations: Sequence[Path]) -> Iterator[str]:
    for name in (NDCG, RECALL):
        values = [np.nanmean([row[name] for row in load_rows(folder).values()]) for folder in evaluations]
        yield _over_seeds(values)
    added = [recall_by_band(folder) for folder in evaluations]
    yield from (f"{np.mean([of[band] for of in added]):.4f}" for band in BANDS)


def _over_seeds(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f}" + (f" (sd {np.std(values, ddof=1):.4f})" if len(values) > 1 else "")


def _difference(found: Mapping[str, tuple[float, float, float]]) -> Iterator[str]:
    for mean, error, between in found.values():
        yield f"{mean:+.4f} ± {error:.4f}"
        yield "-" if np.isnan(between) else f"{between:.4f}"  # of one seed
