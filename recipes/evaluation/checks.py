"""Checks of an evaluation's options; the only file they read is an earlier evaluation's metrics.json."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from convrec.base.errors import UserError
from convrec.base.files import read_json
from convrec.base.same_request import differences
from recipes.evaluation.baselines import BASELINES
from recipes.evaluation.options import EvaluationOptions

# These options concern a model's lists.
NEED_MODEL = ("against", "constrained", "weigh")


def check_options(options: EvaluationOptions) -> EvaluationOptions:
    """Check that the options go together.

    Returns:
        The options, without baselines where there is no training split to fit them on, or where a user answers.

    Raises:
        UserError: Two options exclude each other, or one needs another.
    """
    problem = next(_find_problems(options), None)
    if problem:
        raise UserError("evaluation.conflicting-options", problem)
    return options if options.train and not options.user else replace(options, baselines=())


def _find_problems(options: EvaluationOptions) -> Iterator[str]:
    yield from _check_folders(options)
    if options.allow and not options.constrained:
        yield f"--allow {options.allow}: limits constrained lists. Add --constrained."
    if options.weigh and not options.retrieval:
        yield "--weigh: fuses the model's lists with a retrieval's. Give --retrieval."
    yield from _check_dialogue_options(options)
    if options.model is None:
        yield from _check_baselines_alone(options)


def _check_folders(options: EvaluationOptions) -> Iterator[str]:
    out = Path(options.out)
    if any(part.exists() and not part.is_dir() for part in (out, *out.parents)):
        yield f"--out {out}: a file is in the way. Name a folder."
    if options.against and Path(options.against).resolve() == out.resolve():
        yield f"--against {options.against}: is also --out and would be overwritten. Name another --out."


def _check_dialogue_options(options: EvaluationOptions) -> Iterator[str]:
    if (options.user is None) != (not options.ask):
        yield "--user and --ask: give both (who answers, what may be asked about) or neither."
    if not options.user:
        return
    for name in ("constrained", "retrieval"):
        if getattr(options, name):
            yield f"--user, --{name}: simulated conversations have free turns only. Give one of the two."
    if options.max_turns is not None and options.max_turns < 1:
        yield f"--max-turns {options.max_turns}: must be at least 1, the turn of the list"


def _check_baselines_alone(options: EvaluationOptions) -> Iterator[str]:
    for name in NEED_MODEL:
        if getattr(options, name):
            yield f"--{name}: concerns a model's lists. Give --model."
    if options.retrieval:
        return
    if not options.baselines:
        yield f"no --model and no --baselines: nothing to evaluate. Give one of them ({', '.join(BASELINES)})"
    if not options.train:
        names = " and ".join(options.baselines)
        yield f"no --model, and no --train for the baseline {names}: give one of them."


def refuse_to_replace(out: Path, model: str | None, data: str) -> None:
    """Check that OUT holds no evaluation of another model or on other data.

    Args:
        out: the folder to write; it need not exist.
        model: as the evaluation's settings have it; None for baselines alone.
        data: file of the split.

    Raises:
        UserError: it holds another evaluation, or its metrics.json is damaged.
    """
    file = out / "metrics.json"
    if not file.exists():
        return
    requested = {"model": model, "data": data}
    settings = read_json(file)["settings"]
    if other := differences({name: settings[name] for name in requested}, requested):
        raise UserError(
            "evaluation.other-evaluation",
            f"--out {out}: holds another evaluation ({', '.join(other)}). Name another folder, or add --overwrite.",
        )
