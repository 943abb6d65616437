"""From options to an evaluation that has been checked: `prepare_evaluation`. Nothing here starts an engine.

check_options       which options go together (recipes.evaluation.checks)
choose_rules        how lists are read and scored: by the options, else the run's settings
read_data           rows and truths, training rows, what figures are broken down by
load_retriever      lists without a model
choose_sampling     how the model writes its lists
for_model           the model, what its constrained lists may hold, an earlier evaluation to compare with
describe_settings   what metrics.json says of all this
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
from convrec.titles.catalog import Catalog
from convrec.titles.matching import Matcher
from recipes.evaluation.baselines import API
from recipes.evaluation.beyond_accuracy import make_context
from recipes.evaluation.checks import check_options
from recipes.evaluation.constrained import make_constraint
from recipes.evaluation.measures import Context
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.scoring import Row, read_earlier
from recipes.evaluation.slices import SLICES, slice_labels
from recipes.evaluation.split import NO_ROWS, Rows, Split, read_rows, read_split

# Options that metrics.json has among its settings, by name.
OF_DIALOGUES = ("user", "ask", "max_turns")  # where there is a user
RECORDED = ("model", "data", "catalog", "train", "allow", "limit", "constrained", "retrieval")
FILES = ("data", "catalog", "train")  # with their hashes

RunConfig = dict[str, Any]  # of the run that the lists are asked and scored as; {} for a model of none


@dataclass(frozen=True)
class ScoringRules:
    """How lists are read and scored.

    Attributes:
        lists: as the first protocol reads them.
        ks: the lengths at which metrics are computed.
        matching_by_protocol: the name of each protocol's matching.
    """

    lists: ListSettings
    ks: Sequence[int]
    matching_by_protocol: Mapping[str, str]

    def matchers(self, split: Split) -> dict[str, Matcher]:
        """The matcher of each protocol; the split has the first one's."""
        return {
            protocol: split.matcher if matching == self.lists.matching else self._matcher(split.catalog, matching)
            for protocol, matching in self.matching_by_protocol.items()
        }

    def _matcher(self, catalog: Catalog, matching: str) -> Matcher:
        return make_matcher(catalog, replace(self.lists, matching=matching))


@dataclass(frozen=True)
class EvaluationData:
    """What is scored, and what it is measured against.

    Attributes:
        split: rows and truths, read as the first protocol does.
        matchers: by protocol.
        train: the rows that baselines are fitted on.
        context: popularity, genres, titles mentioned and wanted.
        labels: of each slice, the part that a row is in.
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
        path: a folder or id that vLLM loads, or `api:NAME`; "None" for an evaluation of baselines alone.
        placement: how many replicas, on how many GPUs each.
        sampling: the arguments of the generation, as metrics.json has them.
        constraint: what its second lists may hold; None: it writes free lists alone.
        warnings: about the constraint.
    """

    path: str
    placement: Placement
    sampling: Mapping[str, Any]
    constraint: Constraint | None = None
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluation:
    """An evaluation that has been checked.

    Attributes:
        options: as given, with what was left to defaults.
        rules: how lists are read and scored.
        data: rows, truths and what they are measured against.
        model: the model, where `options.model` names one.
        retriever: whose lists are scored beside the model's, and fused with them.
        settings: as metrics.json has them.
        before: of each row that of the evaluation `options.against`, None where that has none; None: no comparison.
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
        """For the reader of the metrics."""
        return [*self.data.split.warnings, *self.model.warnings]

    def for_model(self, model: str | None, out: str, against: str | None = None) -> "Evaluation":
        """The same for this model. Raises UserError for one that cannot be asked, and for an evaluation that it cannot
        be compared with."""
        options = replace(self.options, model=model, out=out, against=against)
        split = self.data.split
        path = check_model(model, split.catalog)
        before = read_earlier(Path(against), split, self.settings) if against else None
        constraint = None
        warnings: list[str] = []
        if options.constrained:
            constraint, warnings = make_constraint(options, split, path, self.rules.lists)
        prepared = replace(self.model, path=path, constraint=constraint, warnings=warnings)
        settings = {**self.settings, "model": model, "model_path": path}
        return replace(self, options=options, model=prepared, settings=settings, before=before)

    def requests(self) -> dict[str, GenerationRequest]:
        """What the model is asked for: "model", its free lists, and "constrained" ones."""
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
    """Read and check all that an evaluation needs.

    Raises:
        UserError: An option, a file or the model cannot be used.
    """
    options = check_options(options)
    placement = Placement(options.replicas, options.tensor_parallel)
    run_config = read_run_config(options)
    if options.max_turns is None:
        options = replace(options, max_turns=setting(run_config, "convrec.max_turns") or MAX_TURNS)
    rules = choose_rules(options, run_config)
    data = read_data(options, rules, run_config)
    retriever = load_retriever(options, data.split)
    sampling = choose_sampling(options, run_config)
    evaluation = Evaluation(
        options=options,
        rules=rules,
        data=data,
        model=EvaluatedModel(str(options.model), placement, sampling),
        retriever=retriever,
        settings=describe_settings(options, rules, data, sampling),
    )
    return evaluation.for_model(options.model, options.out, options.against)


# ---- how lists are read and scored


def read_run_config(options: EvaluationOptions) -> RunConfig:
    """The settings of the run that the lists are asked and scored as: `options.run`, else the model's; {} for none."""
    run: Path | None
    if options.run:
        return read_config(Path(options.run))
    if options.model is None or options.model.startswith(API):
        return {}
    run = run_folder(options.model)
    return read_config(run) if run else {}


def choose_rules(options: EvaluationOptions, run_config: RunConfig) -> ScoringRules:
    """The options' rules, else the run's, else the defaults. Raises UserError for ks beyond the lists.

    A list separated by `|` is one item to a reader of lines, and only the matcher that made `val/ndcg` finds it again.
    """
    given = {name: getattr(options, name) for name in KINDS}
    chosen = {name: value for name, value in given.items() if value is not None}
    lists = ListSettings.of((setting(run_config, "convrec") or {}) | chosen)
    matching_by_protocol: dict[str, str] = {
        protocol: "reference" if protocol == "reference" and not options.matching else lists.matching
        for protocol in options.protocols
    }
    lists = replace(lists, matching=matching_by_protocol[options.protocols[0]])
    ks = options.ks or [k for k in KS if k <= lists.num_items] or [lists.num_items]
    for k in ks:
        if not 1 <= k <= lists.num_items:
            raise UserError(f"--ks {k}: must be from 1 to the {lists.num_items} items of a list (--num-items)")
    return ScoringRules(lists, list(ks), matching_by_protocol)


# ---- rows and truths


def read_data(options: EvaluationOptions, rules: ScoringRules, run_config: RunConfig) -> EvaluationData:
    """Read the split with its catalog, and the training rows. Raises UserError for files that cannot be used."""
    split = read_split(options.data, options.catalog, rules.lists, options.limit, options.skip_damaged)
    split.warnings.extend(_warn_of_candidates(options.data, split, run_config))
    matchers = rules.matchers(split)
    train = read_train(options, split.catalog)
    context = make_context(split, train.rows)
    labels = {name: slice_labels(name, split, context) for name in (*SLICES, *(options.slices or ()))}
    return EvaluationData(split, matchers, train, context, labels)


def read_train(options: EvaluationOptions, catalog: Catalog) -> Rows:
    """The training rows, with all ratings of those from `convrec data ratings`; none where no file is given."""
    if not options.train:
        return NO_ROWS
    train = read_rows(options.train, catalog, options.skip_damaged, scored=False)
    return train._replace(ratings=read_train_ratings(Path(options.train), catalog))


def _warn_of_candidates(data: str, split: Split, run_config: RunConfig) -> list[str]:
    """A warning where prompts name candidates and the run's did not, or the other way round."""
    trained = setting(run_config, "convrec.candidates") or 0
    most = max(count_candidates(row["prompt"][0]["content"]) for row in split.rows)
    if run_config and (most > trained or most == 0 < trained):
        return [f"{data}: prompts name {most} candidates, and the model had CANDIDATES={trained}"]
    return []


# ---- where lists come from


def load_retriever(options: EvaluationOptions, split: Split) -> Retriever | None:
    """The retriever of --retrieval, None without one; what has changed since it was fitted: a warning of the split."""
    if not options.retrieval:
        return None
    fuses = options.model is not None and not options.weigh
    retriever, changes = load(Path(options.retrieval), options.catalog, split.matcher, fuses)
    split.warnings.extend(changes)
    return retriever


def choose_sampling(options: EvaluationOptions, run_config: RunConfig) -> dict[str, Any]:
    """The arguments of the generation: greedy, with the options' chat template arguments, else the run's."""
    sampling: dict[str, Any] = {
        "max_tokens": options.max_response_length,
        "max_prompt_tokens": options.max_prompt_length,
        "temperature": 0.0,
        "seed": options.seed,
    }
    template = options.chat_template_kwargs
    if template is None:
        template = setting(run_config, "data.apply_chat_template_kwargs")
    if template is not None:  # {}, verl's default: nothing is passed, as in training. None: generation.generate's own
        sampling["chat_template_kwargs"] = dict(template)
    return sampling


def check_model(model: str | None, catalog: Catalog) -> str:
    """Return what vLLM loads, or `api:NAME`; "None" without a model.

    Raises:
        UserError: The model is not there, is damaged, or has no tokenizer for the catalog's titles.
    """
    if model is None or model.startswith(API):
        return str(model)
    path = resolve_model(model, "--model ")
    hub.require(path, "--model ")
    load_tokenizer(path, "--model ", titles=catalog.titles)
    return path


# ---- what is written down


def describe_settings(
    options: EvaluationOptions, rules: ScoringRules, data: EvaluationData, sampling: Mapping[str, Any]
) -> dict[str, Any]:
    """What metrics.json says of how an evaluation was made, but for the path of the model."""
    files = {name: getattr(options, name) for name in FILES}
    return {
        **{name: getattr(options, name) for name in RECORDED},
        "sha256": {name: file_hash(path) for name, path in files.items() if path},
        **asdict(rules.lists),
        "ks": list(rules.ks),
        "protocols": list(options.protocols),
        "matching_of": dict(rules.matching_by_protocol),
        "catalog_items": data.context.num_items,
        **({name: getattr(options, name) for name in OF_DIALOGUES} if options.user else {}),
        **({"sampling": options.sampling} if options.sampling else {}),  # of models behind an API
        **sampling,
    }
