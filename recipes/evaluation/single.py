"""Evaluation of one model on one split: answers, scores, baselines, and the files of the results."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from convrec.base.files import write_json, write_jsonl
from convrec.data.damage import REPORT
from convrec.inference.answers import Answer, GenerationRequest
from convrec.judges.verdict import strip_thinking
from convrec.lists.ranks import split_lines
from convrec.retrieval.retriever import DEPTH, Fusion, Retriever
from convrec.titles.item import Item
from recipes.evaluation.baselines import API, BASELINES, RETRIEVAL, generate_answers
from recipes.evaluation.constrained import check_lists
from recipes.evaluation.dialogues import Conversation, add_figures, play_conversations
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.retrieval import find_listed_rows, retrieve, tune_fusion
from recipes.evaluation.scoring import (
    FUSED,
    OF_MODEL,
    Row,
    Scored,
    compute_paired_differences,
    score_responses,
    summarise_rows,
    warn_unexpected_list_length,
    write_rows,
)
from recipes.evaluation.setup import Evaluation, prepare_evaluation
from recipes.evaluation.slices import compute_slice_results
from recipes.evaluation.split import to_items

Answers = dict[str, list[Row]]  # one of OF_MODEL, or a baseline of dialogues -> an answer per row
Lists = list[list[Item | None]]  # a list per row
ScoredByProtocol = dict[str, dict[str, Scored]]  # protocol -> model or baseline -> rows


def evaluate(options: EvaluationOptions) -> dict[str, Any]:
    """Evaluate a model and write OUT's files.

    Returns:
        The content of metrics.json; see `answer_and_score`.

    Raises:
        UserError: An option, a file or the model cannot be used; before vLLM starts.
    """
    return answer_and_score(prepare_evaluation(options))


def answer_and_score(evaluation: Evaluation) -> dict[str, Any]:
    """Generate answers, score them and write OUT's files.

    Returns:
        The content of metrics.json. "results" has, by protocol, the summary (scoring.summarise_rows) of the model and
        of each baseline; measures beyond accuracy stand in the first protocol. The following sections use the first
        protocol and free lists: "paired" is this model minus that of `against`, "minus" this model minus each
        baseline, "slices" compute_slice_results. With `constrained`, the model also writes a constrained list per
        prompt: their summary is in "results", and "constrained" has the counts of their check and their paired gain
        over free lists. With `retrieval`, "fused" has the paired gain of the fused lists over those of the retrieval.
        "damaged" counts the rows left out of data and train; damaged.jsonl names them. The other sections are
        "settings", "generation" and "warnings". If a user answers, the lists are those at the end of the
        conversations, and the baselines dialogues.ASKING_POLICIES.
    """
    model = ModelAnswers(evaluation)
    conversations: dict[str, list[Conversation]] = {}
    if evaluation.options.user:
        conversations = play_conversations(evaluation, model.ask)
        answers = {name: [conversation.answer for conversation in of_rows] for name, of_rows in conversations.items()}
    else:
        answers = model.ask_all()
    generation = model.report()
    lists, fusion = collect_lists(evaluation, answers)
    scored = score_lists(evaluation, lists, conversations)
    metrics = compute_metrics(evaluation, scored, fusion)
    metrics["generation"] = generation
    if "model" in lists:
        metrics["warnings"] += warn_unexpected_list_length(lists["model"], evaluation.rules.lists.num_items)
    if evaluation.model.constraint:
        metrics["constrained"] |= model.check_constrained()
    write_results(evaluation, answers, scored, metrics)
    return metrics


class ModelAnswers:
    """The answers of an evaluation's model, and figures about their generation."""

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation
        self.start = time.monotonic()
        self.by_request: list[dict[str, Answer]] = []
        self.generated = 0

    def ask(self, request: GenerationRequest) -> dict[str, Answer]:
        """Generate the answers to a request, by prompt id."""
        model = self.evaluation.model
        options = self.evaluation.options
        answers, new = generate_answers(
            request,
            model.placement,
            progress=options.progress,
            api_sampling=options.sampling,
            **model.sampling,
        )
        if request.model_path.startswith(API):
            # in training, a policy's thinking counts as ranks of its list; a model behind an API was not trained so
            answers = {name: answer | {"text": strip_thinking(answer["text"])} for name, answer in answers.items()}
        self.generated += new
        self.by_request.append(answers)
        return answers

    def ask_all(self) -> Answers:
        """Generate the answers for each row: "model" for free lists, and "constrained"."""
        answers = {name: self.ask(request) for name, request in self.evaluation.make_requests().items()}
        prompt_ids = self.evaluation.data.split.prompt_ids
        return {name: [by_prompt[prompt] for prompt in prompt_ids] for name, by_prompt in answers.items()}

    def report(self) -> dict[str, Any]:
        """Return the section "generation" of the metrics, with the seconds so far.

        Truncated prompts and unfinished responses count free lists only.
        """
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
        """Check the constrained lists, which are the last request, with constrained.check_lists."""
        return check_lists(self.evaluation.data.split, self.by_request[-1], self.evaluation.rules.lists)


def collect_lists(evaluation: Evaluation, answers: Answers) -> tuple[dict[str, Lists], Fusion | None]:
    """Collect the lists of the model and of each baseline, and fuse the model with the retrieval, if any.

    Args:
        evaluation: the evaluation.
        answers: of the model, or of the baselines of dialogues.

    Returns:
        Model or baseline -> one list per row, and the fusion; None without a model or a retrieval.
    """
    split = evaluation.data.split
    lists = {name: _read_lists(evaluation, of_rows) for name, of_rows in answers.items()}
    retriever = evaluation.retriever
    for name in evaluation.options.baselines:
        if name != RETRIEVAL or not retriever:
            lists[name] = BASELINES[name](split, evaluation.data.train, evaluation.rules.lists.num_items)
    fusion = None
    if retriever:
        rules = evaluation.rules
        retrieved = retrieve(split, retriever, max(DEPTH, rules.lists.num_items, *rules.ks))
        lists[RETRIEVAL] = _to_item_lists(evaluation, retrieved)
        of_model = lists.get("constrained", lists.get("model"))
        if of_model:
            written = find_listed_rows(split, of_model)
            fusion = _choose_fusion(evaluation, retriever, written, retrieved)
            lists[FUSED] = _to_item_lists(
                evaluation, [fusion.of(*pair) for pair in zip(written, retrieved, strict=True)]
            )
    return lists, fusion


def _read_lists(evaluation: Evaluation, answers: Sequence[Row]) -> Lists:
    split = evaluation.data.split
    delimiter = evaluation.rules.lists.delimiter
    return [list(map(split.matcher.read_line, split_lines(answer["text"], delimiter))) for answer in answers]


def _to_item_lists(evaluation: Evaluation, rows: Sequence[Sequence[int]]) -> Lists:
    """Convert lists of catalog rows to lists of at most num_items items."""
    num_items = evaluation.rules.lists.num_items
    return [to_items(evaluation.data.split.catalog, of_row[:num_items]) for of_row in rows]


def _choose_fusion(
    evaluation: Evaluation, retriever: Retriever, written: list[list[int]], retrieved: list[list[int]]
) -> Fusion:
    """Tune and store the fusion with --weigh; else return the stored one."""
    options = evaluation.options
    if options.weigh:
        folder = Path(options.retrieval or "")
        num_items = evaluation.rules.lists.num_items
        return tune_fusion(evaluation.data.split, retriever, folder, options.model, num_items, written, retrieved)
    assert retriever.fusion  # `load` requires one
    return retriever.fusion


def score_lists(
    evaluation: Evaluation, lists: Mapping[str, Lists], conversations: Mapping[str, list[Conversation]]
) -> ScoredByProtocol:
    """Score all lists by each protocol.

    Args:
        evaluation: the evaluation.
        lists: model or baseline -> one list per row.
        conversations: the same names -> one conversation per row, whose figures are added to the scores; {} if no user
            answered.
    """
    split = evaluation.data.split
    scored = {
        protocol: {
            name: score_responses(split, matcher, items, protocol, evaluation.settings) for name, items in lists.items()
        }
        for protocol, matcher in evaluation.data.matchers.items()
    }
    for by_name in scored.values():
        for name, of_rows in conversations.items():
            add_figures(evaluation, of_rows, by_name[name])
    return scored


def compute_metrics(evaluation: Evaluation, scored: ScoredByProtocol, fusion: Fusion | None) -> dict[str, Any]:
    """Compute the content of metrics.json, except for the generation and the check of constrained lists.

    Args:
        evaluation: the evaluation.
        scored: the results of `score_lists`. The rows of the first protocol get the measures beyond accuracy, in place.
        fusion: of the model with the retrieval; None without it.
    """
    data = evaluation.data
    split = data.split
    settings = {**evaluation.settings, **({"fusion": fusion._asdict()} if fusion else {})}
    protocol, first = next(iter(scored.items()))
    results = {}
    for name, by_model in scored.items():
        context = data.context if name == protocol else None
        results[name] = {model: summarise_rows(rows, split, settings, context) for model, rows in by_model.items()}
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
            name: compute_paired_differences(first[name], first["model"], split, settings) for name in baselines
        }
    if FUSED in first:
        metrics[FUSED] = {"paired": compute_paired_differences(first[RETRIEVAL], first[FUSED], split, settings)}
    if "constrained" in first:
        metrics["constrained"] = {
            "paired": compute_paired_differences(first["model"], first["constrained"], split, settings)
        }
    if evaluation.before:
        differences = compute_paired_differences(evaluation.before, first["model"], split, settings)
        metrics["paired"] = differences | {"against": evaluation.options.against}
    return metrics


def _slice_results(evaluation: Evaluation, scored: Mapping[str, Scored]) -> dict[str, Any]:
    """Compute NDCG and Recall at the largest k by slice, for the model or, without one, the first baseline."""
    rows = scored.get("model") or next(iter(scored.values()))
    labels = dict(evaluation.data.labels)
    if evaluation.options.user:
        labels["questions"] = [str(row["questions"]) for row in rows]
    k = max(evaluation.rules.ks)
    metrics = [f"ndcg@{k}", f"recall@{k}"]
    return compute_slice_results(labels, rows, evaluation.data.split.prompt_ids, metrics, evaluation.before)


def write_results(
    evaluation: Evaluation, answers: Answers, scored: ScoredByProtocol, metrics: Mapping[str, Any]
) -> None:
    """Write rows.parquet, damaged.jsonl and metrics.json, and remove files that an earlier evaluation left there.

    Args:
        evaluation: the evaluation; its options name the folder.
        answers: of the model. Only lists of OF_MODEL have a file of rows.
        scored: the results of `score_lists`.
        metrics: the content of metrics.json, which is written last.
    """
    out = Path(evaluation.options.out)
    split = evaluation.data.split
    for name in OF_MODEL:
        file = out / ("rows.parquet" if name == "model" else f"rows_{name}.parquet")
        if name in answers:
            write_rows(file, split, answers[name], {protocol: by_name[name] for protocol, by_name in scored.items()})
        else:
            file.unlink(missing_ok=True)  # metrics.json no longer describes an earlier evaluation's rows
    damaged = [
        {"file": evaluation.settings[name], "row": row, "code": problem.code, "reason": str(problem)}
        for name, rows in (("data", split.damaged), ("train", evaluation.data.train.damaged))
        for row, problem in rows.items()
    ]
    (out / REPORT).unlink(missing_ok=True)
    if damaged:
        write_jsonl(out / REPORT, damaged)
    write_json(out / "metrics.json", metrics)
