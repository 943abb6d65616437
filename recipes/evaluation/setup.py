"""An evaluation read and checked: options -> files, prompts, settings. Nothing here starts an engine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from convrec.checkpoints import hub
from convrec.checkpoints.models import resolve_model, run_folder
from convrec.data.tokenizer import load_tokenizer
from convrec.errors import UserError
from convrec.features.asking.turns import MAX_TURNS
from convrec.features.candidates.prompts import count_candidates
from convrec.files import file_hash, read_json
from convrec.generation.answers import GenerationRequest
from convrec.generation.generate import Constraint
from convrec.generation.placement import Placement
from convrec.lists.matching import Matcher, make_matcher
from convrec.lists.metrics import KS
from convrec.lists.settings import KINDS, ListSettings
from convrec.retrieval.folder import load
from convrec.retrieval.retriever import Retriever
from convrec.retrieval.train_ratings import read_train_ratings
from convrec.runs.folder import read_config, setting
from convrec.same_request import differences
from recipes.evaluation.baselines import API, BASELINES
from recipes.evaluation.beyond_accuracy import Context, context_of
from recipes.evaluation.constrained import make_constraint
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.scoring import Row, read_earlier
from recipes.evaluation.slices import SLICES, slice_labels
from recipes.evaluation.split import NO_ROWS, Rows, Split, read_rows, read_split

OF_DIALOGUES = ("user", "ask", "max_turns")  # recorded where there is a user
RECORDED = ("model", "data", "catalog", "train", "allow", "limit", "constrained", "retrieval")  # in metrics.json


@dataclass(frozen=True)
class Setup:
    """An evaluation that has been checked.

    lists, split: as the first protocol reads them. matchers: by protocol. labels: of each slice, the part that a row is
    in. sampling, settings: as metrics.json has them. before: of each row the one of `against`, None: not there.
    """

    options: EvaluationOptions
    placement: Placement
    lists: ListSettings
    split: Split
    matchers: dict[str, Matcher]
    train: Rows
    context: Context
    retriever: Retriever | None
    labels: dict[str, list[str | None]]
    sampling: dict[str, Any]
    settings: dict[str, Any]
    before: list[Row | None] | None = None
    constraint: Constraint | None = None
    warnings: Sequence[str] = ()

    def for_model(self, model: str | None, out: str, against: str | None = None) -> "Setup":
        """The same for this model. Raises UserError for one that cannot be asked, and for an evaluation that it cannot
        be compared with."""
        options = replace(self.options, model=model, out=out, against=against)
        model_path = str(model)
        if model is not None and not model.startswith(API):
            model_path = resolve_model(model, "--model ")
            hub.require(model_path, "--model ")
            load_tokenizer(model_path, "--model ", titles=self.split.catalog.titles)
        before = read_earlier(Path(against), self.split, self.settings) if against else None
        constraint, warnings = None, self.split.warnings
        if options.constrained:
            constraint, left_out = make_constraint(options, self.split, model_path, self.lists)
            warnings = [*warnings, *left_out]
        settings = self.settings | {"model": model, "model_path": model_path}
        return replace(
            self, options=options, settings=settings, before=before, constraint=constraint, warnings=warnings
        )

    def asked(self) -> dict[str, GenerationRequest]:
        """What the model is asked for: "model", its free lists, and "constrained" ones."""
        if self.options.model is None:
            return {}
        model, out, prompts = self.settings["model_path"], Path(self.options.out), self.split.prompts
        asked = {"model": GenerationRequest(model, prompts, out / "generations.parquet")}
        if self.constraint:
            path = out / "generations_constrained.parquet"
            asked["constrained"] = GenerationRequest(model, prompts, path, self.constraint)
        return asked


def refuse_to_replace(out: Path, model: str | None, data: str) -> None:
    """Raise UserError where OUT holds the evaluation of another model, or on other data."""
    file, asked = out / "metrics.json", {"model": model, "data": data}
    before = read_json(file)["settings"] if file.exists() else asked
    if other := differences({name: before[name] for name in asked}, asked):
        raise UserError(f"--out {out}: it holds an evaluation whose {', '.join(other)}; give another, or --overwrite")


def set_up(options: EvaluationOptions) -> Setup:
    options = _checked(options)
    placement = Placement(options.replicas, options.tensor_parallel)
    trained_with = _config_of_run(options)
    if options.max_turns is None:
        options = replace(options, max_turns=setting(trained_with, "convrec.max_turns") or MAX_TURNS)
    lists, matching_of = _list_settings(options, trained_with)
    ks = options.ks or [k for k in KS if k <= lists.num_items] or [lists.num_items]
    for k in ks:
        if not 1 <= k <= lists.num_items:
            raise UserError(f"--ks {k}: must be from 1 to the {lists.num_items} items of a list (--num-items)")
    split = read_split(options.data, options.catalog, lists, options.limit, options.skip_damaged)
    trained = setting(trained_with, "convrec.candidates") or 0
    most = max(count_candidates(row["prompt"][0]["content"]) for row in split.rows)
    if trained_with and (most > trained or most == 0 < trained):
        split.warnings.append(f"{options.data}: prompts name {most} candidates, and the model had CANDIDATES={trained}")
    matchers = {
        protocol: split.matcher
        if mode == lists.matching
        else make_matcher(split.catalog, replace(lists, matching=mode))
        for protocol, mode in matching_of.items()
    }
    train = NO_ROWS
    if options.train:
        train = read_rows(options.train, split.catalog, options.skip_damaged, scored=False)
        train = train._replace(ratings=read_train_ratings(Path(options.train), split.catalog))
    context = context_of(split, train.rows)
    retriever = None
    if options.retrieval:
        fuses = options.model is not None and not options.weigh
        retriever, changed = load(Path(options.retrieval), options.catalog, split.matcher, fuses)
        split.warnings.extend(changed)
    sampling: dict[str, Any] = {
        "max_tokens": options.max_response_length,
        "max_prompt_tokens": options.max_prompt_length,
        "temperature": 0.0,
        "seed": options.seed,
    }
    template = options.chat_template_kwargs
    if template is None:
        template = setting(trained_with, "data.apply_chat_template_kwargs")
    if template is not None:  # {}, verl's default: nothing is passed, as in training. None: generation.generate's own
        sampling["chat_template_kwargs"] = dict(template)
    files = ("data", "catalog", "train")
    settings = {
        **{name: getattr(options, name) for name in RECORDED},
        "sha256": {name: file_hash(path) for name in files if (path := getattr(options, name))},
        **asdict(lists),
        "ks": list(ks),
        "protocols": list(options.protocols),
        "matching_of": matching_of,
        "catalog_items": context.num_items,
        **({name: getattr(options, name) for name in OF_DIALOGUES} if options.user else {}),
        **({"sampling": options.sampling} if options.sampling else {}),  # of models behind an API
        **sampling,
    }
    labels = {name: slice_labels(name, split, context) for name in (*SLICES, *(options.slices or ()))}
    setup = Setup(options, placement, lists, split, matchers, train, context, retriever, labels, sampling, settings)
    return setup.for_model(options.model, options.out, options.against)


def _checked(options: EvaluationOptions) -> EvaluationOptions:
    """The options, without baselines where no --train is, or a user. Raises UserError for what does not go together."""
    out, against = Path(options.out), options.against
    if any(part.exists() and not part.is_dir() for part in (out, *out.parents)):
        raise UserError(f"--out {out}: a file is in its place; name a folder")
    if against and Path(against).resolve() == out.resolve():
        raise UserError(f"--against {against}: also --out, which would be overwritten; name another --out")
    if options.allow and not options.constrained:
        raise UserError(f"--allow {options.allow}: it says what constrained lists may hold; add --constrained")
    if options.weigh and not options.retrieval:
        raise UserError("--weigh: it is about a retrieval's lists; give --retrieval")
    if (options.user is None) != (not options.ask):
        raise UserError("--user and --ask: give both, who answers and what may be asked about, or neither")
    if options.user:
        if with_user := [name for name in ("constrained", "retrieval") if getattr(options, name)]:
            raise UserError(f"--user, --{with_user[0]}: conversations are played with free turns; give one of them")
        if options.max_turns is not None and options.max_turns < 1:
            raise UserError(f"--max-turns {options.max_turns}: at least 1, the list")
    if options.model is None:
        if needs_model := [name for name in ("against", "constrained", "weigh") if getattr(options, name)]:
            raise UserError(f"--{needs_model[0]}: it is about a model's lists; give --model")
        if not options.baselines and not options.retrieval:
            raise UserError(f"no --model and no --baselines: give one of them ({', '.join(BASELINES)})")
        if not options.train and not options.retrieval:
            names = " and ".join(options.baselines)
            raise UserError(f"no --model, and no --train for the baseline {names}: give one of them")
    return options if options.train and not options.user else replace(options, baselines=())


def _config_of_run(options: EvaluationOptions) -> dict[str, Any]:
    """Of the run that the lists are asked and scored as; {} of a model of none."""
    run = Path(options.run) if options.run else None
    if not run and options.model is not None and not options.model.startswith(API):
        run = run_folder(options.model)
    return read_config(run) if run else {}


def _list_settings(options: EvaluationOptions, trained_with: dict[str, Any]) -> tuple[ListSettings, dict[str, str]]:
    """What was given (not None), else the run's, else the default, with the matching of the first protocol; and of each
    protocol the matching.

    A list separated by `|` is one item to a reader of lines, and only the matcher that made `val/ndcg` finds it again.
    """
    given = {name: value for name in KINDS if (value := getattr(options, name)) is not None}
    lists = ListSettings.of((setting(trained_with, "convrec") or {}) | given)
    matching_of: dict[str, str] = {
        protocol: "reference" if protocol == "reference" and not options.matching else lists.matching
        for protocol in options.protocols
    }
    return replace(lists, matching=matching_of[options.protocols[0]]), matching_of
