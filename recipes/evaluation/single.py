"""One model evaluated on one split: answers, their scores, the baselines beside, and three files."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.base.files import write_json, write_jsonl
from convrec.data.damage import REPORT
from convrec.inference.answers import Answer, GenerationRequest
from convrec.judges.verdict import outside_thinking
from convrec.lists.ranks import split_lines
from convrec.retrieval.retriever import Fusion, Retriever
from convrec.titles.item import Item
from recipes.evaluation.baselines import API, BASELINES, RETRIEVAL, answers_to
from recipes.evaluation.constrained import check_lists
from recipes.evaluation.dialogues import Conversation, add_figures, dialogues
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.retrieval import retrieve, weigh, written_rows
from recipes.evaluation.scoring import (
    FUSED,
    OF_MODEL,
    Row,
    Scored,
    paired_differences,
    score,
    summary,
    unlike_lengths,
    write_rows,
)
from recipes.evaluation.setup import Evaluation, prepare_evaluation
from recipes.evaluation.slices import slice_results
from recipes.evaluation.split import as_items

Answers = dict[str, list[Row]]  # of each of OF_MODEL that there is, one for each row
Lists = list[list[Item | None]]  # one for each row
ScoredByProtocol = dict[str, dict[str, Scored]]  # protocol -> whose lists -> rows


def evaluate(options: EvaluationOptions) -> dict[str, Any]:
    """Evaluate and write OUT's three files; returns what metrics.json holds. Raises UserError for bad input, before
    vLLM starts."""
    return answer_and_score(prepare_evaluation(options))


def answer_and_score(evaluation: Evaluation) -> dict[str, Any]:
    """{"settings", "results": {protocol: {"model": summary, "popularity": summary}}, "generation", "warnings",
    "paired", "minus", "slices", "constrained", "damaged"}.

    A summary is scoring.summary's, with the measures beyond accuracy in the first protocol, which "paired" (this model
    minus that of `against`), "minus" (this model minus each baseline) and "slices" (slice_results) are of.
    With `constrained` the model writes a second list for each prompt, held to the catalog: "results" has their summary
    as "constrained", "constrained" how many were checked and, "paired", how much they gain over the free ones, which
    everything else is of. "damaged" has how many rows of data and of train were left out; damaged.jsonl names them.
    Where a user answers, lists are those that conversations end with, and the baselines are dialogues.ASKING.
    """
    model = ModelAnswers(evaluation)
    conversations: dict[str, list[Conversation]] = {}
    if evaluation.options.user:
        conversations = dialogues(evaluation, model.ask)
        answers = {name: [one.answer for one in of_rows] for name, of_rows in conversations.items()}
    else:
        answers = model.ask_all()
    generation = model.report()
    lists, fusion = collect_lists(evaluation, answers)
    scored = score_lists(evaluation, lists, conversations)
    metrics = compute_metrics(evaluation, scored, fusion)
    metrics["generation"] = generation
    if "model" in lists:
        metrics["warnings"] += unlike_lengths(lists["model"], evaluation.rules.lists.num_items)
    if evaluation.model.constraint:
        metrics["constrained"] |= model.check_constrained()
    write_results(evaluation, answers, scored, metrics)
    return metrics


class ModelAnswers:
    """What the model of an evaluation answers, and the figures of generating it."""

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation
        self.start = time.monotonic()
        self.by_request: list[dict[str, Answer]] = []
        self.generated = 0

    def ask(self, request: GenerationRequest) -> dict[str, Answer]:
        """prompt_id -> answer."""
        model = self.evaluation.model
        options = self.evaluation.options
        answers, new = answers_to(
            request,
            model.placement,
            progress=options.progress,
            api_sampling=options.sampling,
            **model.sampling,
        )
        if request.model_path.startswith(API):
            # a policy's thinking would be ranks of its list, as in training; another model's is not its list
            answers = {name: answer | {"text": outside_thinking(answer["text"])} for name, answer in answers.items()}
        self.generated += new
        self.by_request.append(answers)
        return answers

    def ask_all(self) -> Answers:
        """The answers of each row: "model", those of its free lists, and "constrained"."""
        answers = {name: self.ask(request) for name, request in self.evaluation.requests().items()}
        prompt_ids = self.evaluation.data.split.prompt_ids
        return {name: [by_prompt[prompt] for prompt in prompt_ids] for name, by_prompt in answers.items()}

    def report(self) -> dict[str, Any]:
        """The section "generation" of the metrics, with the seconds until now. Truncated prompts and unfinished
        responses are those of free lists."""
        free = self.by_request if self.evaluation.options.user else self.by_request[:1]
        answers = [answer for by_prompt in free for answer in by_prompt.values()]
        return {
            "prompts": sum(map(len, self.by_request)),
            "generated": self.generated,
            "seconds": round(time.monotonic() - self.start, 2),
            "truncated_prompts": sum(answer["prompt_truncated"] for answer in answers),
            "unfinished_responses": sum(answer["finish_reason"] != "stop" for answer in answers),
        }

    def check_constrained(self) -> dict[str, int]:
        """constrained.check_lists of the constrained lists, which were asked for last."""
        return check_lists(self.evaluation.data.split, self.by_request[-1], self.evaluation.rules.lists)


def collect_lists(evaluation: Evaluation, answers: Answers) -> tuple[dict[str, Lists], Fusion | None]:
    """Whose lists there are -> the lists; and how those of the model and the retrieval were fused."""
    split = evaluation.data.split
    lists = {name: _read_lists(evaluation, of_rows) for name, of_rows in answers.items()}
    retriever = evaluation.retriever
    for name in evaluation.options.baselines:
        if name != RETRIEVAL or not retriever:
            lists[name] = BASELINES[name](split, evaluation.data.train, evaluation.rules.lists.num_items)
    fusion = None
    if retriever:
        retrieved = retrieve(split, retriever)
        lists[RETRIEVAL] = _as_lists(evaluation, retrieved)
        of_model = lists.get("constrained", lists.get("model"))
        if of_model:
            written = written_rows(split, of_model)
            fusion = _choose_fusion(evaluation, retriever, written, retrieved)
            lists[FUSED] = _as_lists(evaluation, [fusion.of(*pair) for pair in zip(written, retrieved, strict=True)])
    return lists, fusion


def _read_lists(evaluation: Evaluation, answers: Sequence[Row]) -> Lists:
    split = evaluation.data.split
    delimiter = evaluation.rules.lists.delimiter
    return [list(map(split.matcher.read_line, split_lines(answer["text"], delimiter))) for answer in answers]


def _as_lists(evaluation: Evaluation, rows: Sequence[Sequence[int]]) -> Lists:
    """Lists of catalog rows as lists of items, as long as lists are."""
    num_items = evaluation.rules.lists.num_items
    return [as_items(evaluation.data.split.catalog, of_row[:num_items]) for of_row in rows]


def _choose_fusion(
    evaluation: Evaluation, retriever: Retriever, written: list[list[int]], retrieved: list[list[int]]
) -> Fusion:
    """The fusion that is best on these rows with --weigh, which notes it; else the one that was noted."""
    options = evaluation.options
    if options.weigh:
        folder = Path(options.retrieval or "")
        return weigh(evaluation.data.split, folder, options.model, evaluation.rules.lists.num_items, written, retrieved)
    assert retriever.fusion  # `load` has made sure
    return retriever.fusion


def score_lists(
    evaluation: Evaluation, lists: Mapping[str, Lists], conversations: Mapping[str, list[Conversation]]
) -> ScoredByProtocol:
    """Score all lists by each protocol; where a user answered, the conversations' figures are added to the rows."""
    split = evaluation.data.split
    scored = {
        protocol: {name: score(split, matcher, items, protocol, evaluation.settings) for name, items in lists.items()}
        for protocol, matcher in evaluation.data.matchers.items()
    }
    for by_name in scored.values():
        for name, of_rows in conversations.items():
            add_figures(evaluation, of_rows, by_name[name])
    return scored


def compute_metrics(evaluation: Evaluation, scored: ScoredByProtocol, fusion: Fusion | None) -> dict[str, Any]:
    """What metrics.json holds, but for the generation and the check of constrained lists."""
    data = evaluation.data
    split = data.split
    settings = {**evaluation.settings, **({"fusion": fusion._asdict()} if fusion else {})}
    protocol, first = next(iter(scored.items()))
    results = {}
    for name, by_model in scored.items():
        context = data.context if name == protocol else None
        results[name] = {model: summary(rows, split, settings, context) for model, rows in by_model.items()}
    metrics: dict[str, Any] = {
        "settings": settings,
        "results": results,
        "slices": _slice_results(evaluation, first),
        "warnings": [*evaluation.warnings, *(data.train.warnings[-1:] if data.train.damaged else [])],
        "damaged": {"data": len(split.damaged), "train": len(data.train.damaged)},
    }
    if "model" in first:
        baselines = [name for name in first if name not in OF_MODEL]
        metrics["minus"] = {
            name: paired_differences(first[name], first["model"], split, settings) for name in baselines
        }
    if "constrained" in first:
        metrics["constrained"] = {"paired": paired_differences(first["model"], first["constrained"], split, settings)}
    if evaluation.before:
        differences = paired_differences(evaluation.before, first["model"], split, settings)
        metrics["paired"] = differences | {"against": evaluation.options.against}
    return metrics


def _slice_results(evaluation: Evaluation, scored: Mapping[str, Scored]) -> dict[str, Any]:
    """NDCG and Recall at the largest k of each slice: the model's, without one the first baseline's."""
    rows = scored.get("model") or next(iter(scored.values()))
    labels = dict(evaluation.data.labels)
    if evaluation.options.user:
        labels["questions"] = [str(row["questions"]) for row in rows]
    k = max(evaluation.rules.ks)
    metrics = [f"ndcg@{k}", f"recall@{k}"]
    return slice_results(labels, rows, evaluation.data.split.prompt_ids, metrics, evaluation.before)


def write_results(
    evaluation: Evaluation, answers: Answers, scored: ScoredByProtocol, metrics: Mapping[str, Any]
) -> None:
    """Write rows.parquet, damaged.jsonl and metrics.json, and remove those of an earlier evaluation in their place."""
    out = Path(evaluation.options.out)
    split = evaluation.data.split
    for name in OF_MODEL:
        file = out / ("rows.parquet" if name == "model" else f"rows_{name}.parquet")
        if name in answers:
            write_rows(file, split, answers[name], {protocol: by_name[name] for protocol, by_name in scored.items()})
        else:
            file.unlink(missing_ok=True)  # an earlier evaluation's, which metrics.json is no longer of
    damaged = [
        {"file": evaluation.settings[name], "row": row, "reason": reason}
        for name, rows in (("data", split.damaged), ("train", evaluation.data.train.damaged))
        for row, reason in rows.items()
    ]
    (out / REPORT).unlink(missing_ok=True)
    if damaged:
        write_jsonl(out / REPORT, damaged)
    write_json(out / "metrics.json", metrics)
