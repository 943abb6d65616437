"""What an evaluation asks and scores by: options -> checked files, prompts, settings. Nothing here starts an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convrec.checkpoints import hub
from convrec.checkpoints.models import resolve_model, run_folder
from convrec.errors import UserError
from convrec.files import file_hash, read_json
from convrec.generation.answers import Asked
from convrec.generation.generate import Constraint, Messages
from convrec.lists.matching import make_matcher
from convrec.lists.metrics import KS
from convrec.lists.settings import ListSettings
from convrec.runs.folder import read_config, setting
from recipes.evaluation.baselines import API, BASELINES, OF_TRAINING, empty_prompt
from recipes.evaluation.beyond_accuracy import Context, context_of
from recipes.evaluation.constrained import make_constraint
from recipes.evaluation.scoring import read_other
from recipes.evaluation.slices import SLICES, slice_labels
from recipes.evaluation.split import Rows, Split, read_rows, read_split

EMPTY, OTHER = "empty conversation", "another's conversation"  # the probes; the first is also its prompt's id


@dataclass(frozen=True)
class Setup:
    """An evaluation that has been checked. settings: of the sampling; scored_by, given: what metrics.json says beside;
    split_of: by protocol; other: the rows of `against`."""

    out: Path
    model: str | None
    model_path: str
    baselines: list[str]
    probe: bool
    lists: ListSettings
    split: Split
    split_of: dict[str, Split]
    of_train: Rows
    context: Context
    labels: dict[str, Any]
    prompts: dict[str, Messages]
    settings: dict[str, Any]
    scored_by: dict[str, Any]
    given: dict[str, Any]
    other: dict[str, dict[str, Any]] | None
    against: str | None
    constraint: Constraint | None

    def of_model(self, model: str, out: Path) -> "Setup":
        """The same for another model of the run; what the first was compared with is left out."""
        model_path = resolve_model(model, "--model ")
        constraint = None
        if self.constraint:
            allow = Path(self.given["allow"]) if self.given["allow"] else None
            catalog, max_tokens = Path(self.scored_by["catalog"]), self.settings["max_tokens"]
            constraint, _ = make_constraint(self.split, catalog, model_path, self.lists, max_tokens, allow, out)
        return replace(
            self, model=model, model_path=model_path, out=out, constraint=constraint, other=None, against=None
        )

    def asked(self) -> dict[str, Asked]:
        """What the model is asked for: "model", its free lists, and "constrained" ones."""
        if self.model is None:
            return {}
        asked = {"model": Asked(self.model_path, self.prompts, self.out / "generations.parquet")}
        if self.constraint:
            path = self.out / "generations_constrained.parquet"
            asked["constrained"] = Asked(self.model_path, self.split.prompts, path, self.constraint)
        return asked


def refuse_to_replace(out: Path, model: str | None, data: str) -> None:
    """Raise UserError where OUT holds the evaluation of another model, or on other data."""
    file = out / "metrics.json"
    settings = read_json(file)["settings"] if file.exists() else {"model": model, "data": data}
    before = [f"{name} {settings[name]}" for name, now in (("model", model), ("data", data)) if settings[name] != now]
    if before:
        raise UserError(f"--out {out}: holds the evaluation of {', '.join(before)}; give another --out, or --overwrite")


def set_up(
    *,
    data: str | Path,
    catalog: str | Path,
    out: str | Path,
    model: str | Path | None = None,
    train: str | Path | None = None,
    baselines: Sequence[str] = ("popularity",),
    probe: bool = False,
    slices: Sequence[str] = SLICES,
    num_items: int | None = None,
    ks: Sequence[int] | None = None,
    protocols: Sequence[str] = ("paper",),
    matching: str | None = None,
    delimiter: str | None = None,
    year_tolerance: int | None = None,
    fuzzy_cutoff: float | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    limit: int | None = None,
    seed: int = 3407,
    max_prompt_length: int = 2048,
    max_response_length: int = 1024,
    against: str | Path | None = None,
    run: str | Path | None = None,
    skip_damaged: float | None = None,
    constrained: bool = False,
    allow: str | Path | None = None,
) -> Setup:
    """Read and check everything; `evaluate` says what the options are. Raises UserError."""
    out = Path(out)
    if any(part.exists() and not part.is_dir() for part in (out, *out.parents)):
        raise UserError(f"--out {out}: a file is in its place; name a folder")
    if against and Path(against).resolve() == out.resolve():
        raise UserError(f"--against {against}: also --out, which would be overwritten; name another --out")
    asked = [name for name in baselines if train or name not in OF_TRAINING]
    if model is None:
        needs_model = {"--against": against, "--probe": probe, "--constrained": constrained, "--allow": allow}
        _check_without_model(asked, baselines, [name for name, value in needs_model.items() if value])
    if allow and not constrained:
        raise UserError(f"--allow {allow}: it says what constrained lists may hold; add --constrained")
    of_api = str(model).startswith(API)
    model_path = str(model) if of_api or model is None else resolve_model(model, "--model ")
    if model is not None and not of_api:
        hub.require(model_path, "--model ")
    of_run = Path(run) if run else None if of_api or model is None else run_folder(model)
    trained_with = read_config(of_run) if of_run else {}
    given = {
        "num_items": num_items,
        "delimiter": delimiter,
        "matching": matching,
        "year_tolerance": year_tolerance,
        "fuzzy_cutoff": fuzzy_cutoff,
    }
    lists = _list_settings(trained_with, given)
    num_items = lists.num_items
    if chat_template_kwargs is None:
        # {}, verl's default: nothing is passed to the template, as in training. None: generation.generate's own
        chat_template_kwargs = setting(trained_with, "data.apply_chat_template_kwargs")
    ks = ks or [k for k in KS if k <= num_items] or [num_items]
    for k in ks:
        if not 1 <= k <= num_items:
            raise UserError(f"--ks {k}: must be from 1 to the {num_items} items of a list (--num-items)")
    matching_of = {
        protocol: matching or ("reference" if protocol == "reference" else lists.matching) for protocol in protocols
    }
    scored_with = replace(lists, matching=matching_of[protocols[0]])
    split = read_split(data, catalog, scored_with, limit, skip_damaged)
    split_of = {
        mode: split
        if mode == split.matcher.mode
        else replace(split, matcher=make_matcher(split.catalog, replace(lists, matching=mode)))
        for mode in matching_of.values()
    }
    of_train = read_rows(train, split.catalog, skip_damaged, scored=False) if train else Rows([], {}, [])
    context = context_of(split, of_train.rows)
    labels = {name: slice_labels(name, split, context) for name in slices}
    if probe and len(split.prompts) == 1:
        raise UserError(f"--probe: takes the lists for other conversations, and {data} has one alone; leave it out")
    prompts = split.prompts | ({EMPTY: empty_prompt(split)} if probe else {})
    settings: dict[str, Any] = {
        "max_tokens": max_response_length,
        "max_prompt_tokens": max_prompt_length,
        "temperature": 0.0,
        "seed": seed,
    } | ({} if chat_template_kwargs is None else {"chat_template_kwargs": dict(chat_template_kwargs)})
    scored_by = {
        "data": str(data),
        "catalog": str(catalog),
        "sha256": {
            name: file_hash(path) for name, path in (("data", data), ("catalog", catalog), ("train", train)) if path
        },
        "num_items": num_items,
        "ks": list(ks),
        "protocols": list(protocols),
        "matching": matching_of[protocols[0]],
        "matching_of": matching_of,
        "delimiter": lists.delimiter,
        "year_tolerance": lists.year_tolerance,
        "fuzzy_cutoff": lists.fuzzy_cutoff,
        "catalog_items": context.facts.num_items,
    }
    other = read_other(Path(against), scored_by) if against else None
    constraint = None
    if constrained:
        part = Path(allow) if allow else None
        constraint, told = make_constraint(split, Path(catalog), model_path, lists, max_response_length, part, out)
        split.warnings.extend(told)
    return Setup(
        out=out,
        model=None if model is None else str(model),
        model_path=model_path,
        baselines=asked,
        probe=probe,
        lists=lists,
        split=split,
        split_of={protocol: split_of[mode] for protocol, mode in matching_of.items()},
        of_train=of_train,
        context=context,
        labels=labels,
        prompts=prompts,
        settings=settings,
        scored_by=scored_by,
        given={
            "train": str(train) if train else None,
            "limit": limit,
            "constrained": constrained,
            "allow": str(allow) if allow else None,
        },
        other=other,
        against=None if against is None else str(against),
        constraint=constraint,
    )


def _check_without_model(asked: Sequence[str], baselines: Sequence[str], of_model: Sequence[str]) -> None:
    """of_model: the options given that ask something of a model."""
    if of_model:
        raise UserError(f"{of_model[0]}: it is about a model's lists; give --model")
    if not asked:
        raise UserError(
            f"no --model, and no --train for the baseline {' and '.join(baselines)}: give one of them"
            if baselines
            else f"no --model and no --baselines: give one of them ({', '.join(BASELINES)})"
        )


def _list_settings(trained_with: dict[str, Any], given: Mapping[str, Any]) -> ListSettings:
    """What was given (not None), else the run's, else the default.

    A list separated by `|` is one item to a reader of lines, and only the matcher that made `val/ndcg` finds it again.
    """
    of_run = setting(trained_with, "convrec") or {}
    return ListSettings.of(of_run | {name: value for name, value in given.items() if value is not None})
