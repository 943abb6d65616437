"""Which options of an evaluation go together; nothing is read here but an earlier evaluation's settings."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from convrec.base.errors import UserError
from convrec.base.files import read_json
from convrec.base.same_request import differences
from recipes.evaluation.baselines import BASELINES
from recipes.evaluation.options import EvaluationOptions

# Options that are about a model's lists.
NEED_MODEL = ("against", "constrained", "weigh")


def check_options(options: EvaluationOptions) -> EvaluationOptions:
    """Check that the options go together.

    Returns:
        The options, without baselines where there is no training split to fit them on, or a user to play with.

    Raises:
        UserError: They do not; the message names one of them and what to do.
    """
    problem = next(_find_problems(options), None)
    if problem:
        raise UserError(problem)
    return options if options.train and not options.user else replace(options, baselines=())


def _find_problems(options: EvaluationOptions) -> Iterator[str]:
    yield from _problems_of_folders(options)
    if options.allow and not options.constrained:
        yield f"--allow {options.allow}: it says what constrained lists may hold; add --constrained"
    if options.weigh and not options.retrieval:
        yield "--weigh: it is about a retrieval's lists; give --retrieval"
    yield from _problems_of_dialogues(options)
    if options.model is None:
        yield from _problems_without_model(options)


def _problems_of_folders(options: EvaluationOptions) -> Iterator[str]:
    out = Path(options.out)
    if any(part.exists() and not part.is_dir() for part in (out, *out.parents)):
        yield f"--out {out}: a file is in its place; name a folder"
    if options.against and Path(options.against).resolve() == out.resolve():
        yield f"--against {options.against}: also --out, which would be overwritten; name another --out"


def _problems_of_dialogues(options: EvaluationOptions) -> Iterator[str]:
    if (options.user is None) != (not options.ask):
        yield "--user and --ask: give both, who answers and what may be asked about, or neither"
    if not options.user:
        return
    for name in ("constrained", "retrieval"):
        if getattr(options, name):
            yield f"--user, --{name}: conversations are played with free turns; give one of them"
    if options.max_turns is not None and options.max_turns < 1:
        yield f"--max-turns {options.max_turns}: at least 1, the list"


def _problems_without_model(options: EvaluationOptions) -> Iterator[str]:
    for name in NEED_MODEL:
        if getattr(options, name):
            yield f"--{name}: it is about a model's lists; give --model"
    if options.retrieval:
        return
    if not options.baselines:
        yield f"no --model and no --baselines: give one of them ({', '.join(BASELINES)})"
    if not options.train:
        names = " and ".join(options.baselines)
        yield f"no --model, and no --train for the baseline {names}: give one of them"


def refuse_to_replace(out: Path, model: str | None, data: str) -> None:
    """Raise UserError where OUT holds the evaluation of another model, or on other data."""
    file = out / "metrics.json"
    if not file.exists():
        return
    requested = {"model": model, "data": data}
    settings = read_json(file)["settings"]
    if other := differences({name: settings[name] for name in requested}, requested):
        raise UserError(f"--out {out}: it holds an evaluation whose {', '.join(other)}; give another, or --overwrite")
