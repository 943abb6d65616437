"""`prepare_evaluation` turns options into a checked evaluation. Nothing here starts an engine.

check_options       rejects conflicting options (recipes.evaluation.checks)
choose_rules        how lists are read and scored: by the options, else the run's settings
read_data           the split, training rows, slices
load_retriever      lists without a model
choose_sampling     arguments of the generation
prepare_model       the model, its constraint, an earlier evaluation to compare with
describe_settings   the settings of metrics.json
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from convrec.base.errors import UserError
from convrec.base.files import file_hash
from convrec.checkpoints import hub
from convrec.checkpoints.models import resolve_model, run_folder
from convrec.data.tokenizer import load_tokenizer
from convrec.features.asking.turns import MAX_TURNS
from convrec.features.candidates.prompts import count_candidates
from convrec.inference.answers import GenerationRequest
from convrec.inference.engines.placement import Placement
from convrec.inference.generate import Constraint
from convrec.lists.metrics import KS
from convrec.lists.settings import KINDS, ListSettings, make_matcher
from convrec.retrieval.folder import load
from convrec.retrieval.retriever import Retriever
from convrec.retrieval.train_ratings import read_train_ratings
from convrec.runs.folder import read_config, setting
from convrec.titles.catalog import Catalog, reject_changes
from convrec.titles.matching import Matcher
from recipes.evaluation.baselines import API
from recipes.evaluation.beyond_accuracy import make_context
from recipes.evaluation.checks import check_options
from recipes.evaluation.constrained import make_constraint
from recipes.evaluation.measures import Context
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.scoring import Row, read_earlier_rows
from recipes.evaluation.slices import SLICES, label_slice
from recipes.evaluation.split import NO_ROWS, Rows, Split, read_rows, read_split

# Options that metrics.json records among its settings, by name.
DIALOGUE_OPTIONS = ("user", "ask", "max_turns")  # recorded if there is a user
RECORDED_OPTIONS = ("model", "data", "catalog", "train", "allow", "limit", "constrained", "retrieval")
FILES = ("data", "catalog", "train")  # recorded with their hashes

RunConfig = dict[str, Any]  # of the run whose settings apply; {} for a model that no run has trained


@dataclass(frozen=True)
class ScoringRules:
    """How lists are read and scored.

    Attributes:
        lists: settings of lists, with the matching of the first protocol.
        ks: cut-offs of the metrics.
        matching_by_protocol: name of each protocol's matching.
    """

    lists: ListSettings
    ks: Sequence[int]
    matching_by_protocol: Mapping[str, str]

    def make_matchers(self, split: Split) -> dict[str, Matcher]:
        """Make the matcher of each protocol.

        Args:
            split: the rows to score; a protocol with its matching shares its matcher.
        """
        return {
            protocol: split.matcher if matching == self.lists.matching else self._matcher(split.catalog, matching)
            for protocol, matching in self.matching_by_protocol.items()
        }

    def _matcher(self, catalog: Catalog, matching: str) -> Matcher:
        return make_matcher(catalog, replace(self.lists, matching=matching))


@dataclass(frozen=True)
class EvaluationData:
    """What is scored, and what it is compared with.

    Attributes:
        split: rows and ground truth, with the matcher of the first protocol.
        matchers: by protocol.
        train: rows that baselines are fitted on.
        context: popularity, genres, mentioned titles and ground truth.
        labels: for each slice, the part that each row is in; None for none.
    """

    split: Split
    matchers: Mapping[str, Matcher]
    train: Rows
    context: Context
    labels: Mapping[str, list[str | None]]


@dataclass(frozen=True)
class EvaluatedModel:
    """The model whose lists are scored.

    Attributes:
        path: a folder or id that vLLM loads, or `api:NAME`; "None" if only baselines are evaluated.
        placement: number of replicas, and of GPUs for each.
        sampling: arguments of the generation, as metrics.json records them.
        constraint: on its second list; None: it writes free lists only.
        warnings: about the constraint.
    """

    path: str
    placement: Placement
    sampling: Mapping[str, Any]
    constraint: Constraint | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluation:
    """A checked evaluation.

    Attributes:
        options: with defaults filled in.
        rules: how lists are read and scored.
        data: rows, ground truth and context.
        model: the model, if `options.model` names one.
        retriever: its lists are scored too, alone and fused with the model's.
        settings: as metrics.json records them.
        before: for each row, that of the evaluation `options.against`, None where it has none; None: no comparison.
    """

    options: EvaluationOptions
    rules: ScoringRules
    data: EvaluationData
    model: EvaluatedModel
    retriever: Retriever | None
    settings: Mapping[str, Any]
    before: list[Row | None] | None = None

    @property
    def warnings(self) -> list[str]:
        """Warnings about the split and the model."""
        return [*self.data.split.warnings, *self.model.warnings]

    def prepare_model(self, model: str | None, out: str, against: str | None = None) -> "Evaluation":
        """Return this evaluation with another model.

        Args:
            model: as --model names it; None: baselines only.
            out: folder for the results.
            against: --out of an earlier evaluation to compare with.

        Raises:
            UserError: The model cannot be used, or not be compared with the earlier evaluation.
        """
        options = replace(self.options, model=model, out=out, against=against)
        split = self.data.split
        path = check_model(model, split.catalog)
        before = read_earlier_rows(Path(against), split, self.settings) if against else None
        constraint = None
        warnings: list[str] = []
        if options.constrained:
            constraint, warnings = make_constraint(options, split, path, self.rules.lists)
        prepared = replace(self.model, path=path, constraint=constraint, warnings=warnings)
        settings = {**self.settings, "model": model, "model_path": path}
        return replace(self, options=options, model=prepared, settings=settings, before=before)

    def make_requests(self) -> dict[str, GenerationRequest]:
        """Return the generation requests: "model" for free lists, and "constrained"; {} without a model."""
        if self.options.model is None:
            return {}
        out = Path(self.options.out)
        prompts = self.data.split.prompts
        requests = {"model": GenerationRequest(self.model.path, prompts, out / "generations.parquet")}
        if self.model.constraint:
            path = out / "generations_constrained.parquet"
            requests["constrained"] = GenerationRequest(self.model.path, prompts, path, self.model.constraint)
        return requests


def prepare_evaluation(options: EvaluationOptions) -> Evaluation:
    """Read and check everything that an evaluation needs.

    Raises:
        UserError: An option, a file or the model cannot be used, or the catalog's file is replaced while it is read.
    """
    options = check_options(options)
    placement = Placement(options.replicas, options.tensor_parallel)
    run_config = read_run_config(options)
    if options.max_turns is None:
        options = replace(options, max_turns=setting(run_config, "convrec.max_turns") or MAX_TURNS)
    rules = choose_rules(options, run_config)
    with reject_changes(options.catalog):
        data = read_data(options, rules, run_config)
        retriever = load_retriever(options, data.split)
        sampling = choose_sampling(options, run_config)
        settings = describe_settings(options, rules, data, sampling)
    evaluation = Evaluation(
        options=options,
        rules=rules,
        data=data,
        model=EvaluatedModel(str(options.model), placement, sampling),
        retriever=retriever,
        settings=settings,
    )
    return evaluation.prepare_model(options.model, options.out, options.against)


# ---- how lists are read and scored


def read_run_config(options: EvaluationOptions) -> RunConfig:
    """Read the settings of the run `options.run`, or else of the run that trained the model; {} if there is none."""
    run: Path | None
    if options.run:
        return read_config(Path(options.run))
    if options.model is None or options.model.startswith(API):
        return {}
    run = run_folder(options.model)
    return read_config(run) if run else {}


def choose_rules(options: EvaluationOptions, run_config: RunConfig) -> ScoringRules:
    """Choose rules by the options, else the run's settings, else the defaults.

    The run's matching and delimiter matter: read line by line, a list separated by `|` is a single item, and only the
    run's matching reproduces `val/ndcg`.

    Raises:
        UserError: A cut-off of --ks is longer than the lists.
    """
    values = {name: getattr(options, name) for name in KINDS}
    chosen = {name: value for name, value in values.items() if value is not None}
    lists = ListSettings.of((setting(run_config, "convrec") or {}) | chosen)
    matching_by_protocol: dict[str, str] = {
        protocol: "reference" if protocol == "reference" and not options.matching else lists.matching
        for protocol in options.protocols
    }
    lists = replace(lists, matching=matching_by_protocol[options.protocols[0]])
    ks = options.ks or [k for k in KS if k <= lists.num_items] or [lists.num_items]
    for k in ks:
        if not 1 <= k <= lists.num_items:
            raise UserError(
                "evaluation.invalid-cutoff",
                f"--ks {k}: must be from 1 to {lists.num_items}, the --num-items of a list",
            )
    return ScoringRules(lists, list(ks), matching_by_protocol)


# ---- rows and truths


def read_data(options: EvaluationOptions, rules: ScoringRules, run_config: RunConfig) -> EvaluationData:
    """Read the split with its catalog, and the training rows.

    Args:
        options: of the evaluation.
        rules: how lists are scored.
        run_config: of the run that trained the model, for warnings; {} if it is unknown.

    Raises:
        UserError: a file cannot be used, or --slices names an unknown column.
    """
    split = read_split(options.data, options.catalog, rules.lists, options.limit, options.skip_damaged)
    split.warnings.extend(_warn_about_candidates(options.data, split, run_config))
    matchers = rules.make_matchers(split)
    train = read_train(options, split.catalog)
    context = make_context(split, train.rows)
    labels = {name: label_slice(name, split, context) for name in (*SLICES, *(options.slices or ()))}
    return EvaluationData(split, matchers, train, context, labels)


def read_train(options: EvaluationOptions, catalog: Catalog) -> Rows:
    """Read --train, with all ratings if it is from `convrec data ratings`.

    Args:
        options: of the evaluation.
        catalog: of the split.

    Returns:
        The rows; NO_ROWS if the option is not given.

    Raises:
        UserError: the file cannot be read, or too many rows are damaged.
    """
    if not options.train:
        return NO_ROWS
    train = read_rows(options.train, catalog, options.skip_damaged, scored=False)
    return train._replace(ratings=read_train_ratings(Path(options.train), catalog))


def _warn_about_candidates(data: str, split: Split, run_config: RunConfig) -> list[str]:
    """Return a warning if prompts name candidates and the run's prompts did not, or the other way round."""
    trained = setting(run_config, "convrec.candidates") or 0
    most = max(count_candidates(row["prompt"][0]["content"]) for row in split.rows)
    if run_config and (most > trained or most == 0 < trained):
        return [f"{data}: prompts name {most} candidates, but the model was trained with CANDIDATES={trained}"]
    return []


# ---- where lists come from


def load_retriever(options: EvaluationOptions, split: Split) -> Retriever | None:
    """Load --retrieval.

    Args:
        options: of the evaluation.
        split: the rows; its warnings get files that changed since the fit.

    Returns:
        The retriever; None if the option is not given.

    Raises:
        UserError: the folder is not a retrieval, or it cannot be fused with the model.
    """
    if not options.retrieval:
        return None
    fuses = options.model is not None and not options.weigh
    retriever, changes = load(Path(options.retrieval), options.catalog, split.matcher, fuses)
    split.warnings.extend(changes)
    return retriever


def choose_sampling(options: EvaluationOptions, run_config: RunConfig) -> dict[str, Any]:
    """Choose the arguments of the generation: greedy, with the chat template arguments of the options or the run.

    Args:
        options: of the evaluation.
        run_config: of the run that trained the model; {} if it is unknown.

    Returns:
        Arguments of generation.generate; without chat_template_kwargs if neither sets them.
    """
    sampling: dict[str, Any] = {
        "max_tokens": options.max_response_length,
        "max_prompt_tokens": options.max_prompt_length,
        "temperature": 0.0,
        "seed": options.seed,
    }
    template = options.chat_template_kwargs
    if template is None:
        template = setting(run_config, "data.apply_chat_template_kwargs")
    # {} is verl's default and passes nothing, as in training; with None, generation.generate uses its own default
    if template is not None:
        sampling["chat_template_kwargs"] = dict(template)
    return sampling


def check_model(model: str | None, catalog: Catalog) -> str:
    """Check a model and return its path or id for vLLM, or `api:NAME`; "None" without a model.

    Raises:
        UserError: The model is missing or damaged, or its tokenizer cannot write the catalog's titles.
    """
    if model is None or model.startswith(API):
        return str(model)
    path = resolve_model(model, "--model ")
    hub.require(path, "--model ")
    load_tokenizer(path, "--model ", titles=catalog.titles)
    return path


# ---- recorded settings


def describe_settings(
    options: EvaluationOptions, rules: ScoringRules, data: EvaluationData, sampling: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings that metrics.json records, except for the path of the model.

    Args:
        options: of the evaluation.
        rules: how lists are scored.
        data: the split and what belongs to it.
        sampling: arguments of the generation.
    """
    files = {name: getattr(options, name) for name in FILES}
    return {
        **{name: getattr(options, name) for name in RECORDED_OPTIONS},
        "sha256": {name: file_hash(path) for name, path in files.items() if path},
        **asdict(rules.lists),
        "ks": list(rules.ks),
        "protocols": list(options.protocols),
        "matching_of": dict(rules.matching_by_protocol),
        "catalog_items": data.context.num_items,
        **({name: getattr(options, name) for name in DIALOGUE_OPTIONS} if options.user else {}),
        **({"sampling": options.sampling} if options.sampling else {}),  # of models behind an API
        **sampling,
    }
