"""The status page's sections on speed, from the reports of benchmarks that are kept in notes/measured/bench/."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from reference_pages import measured
from reference_pages.markdown import code, table
from reference_pages.measured import describe_machine, read_kept, with_error

Report = dict[str, Any]  # what a benchmark printed
NOT_RECORDED = "Not recorded yet; `notes/benchmarks.md` has earlier figures."
RUNS = {"ours": "this program", "trl": "TRL's GRPO", "paper": "the paper's code"}
SERVED = {
    "list": "constrained list of 20 films",
    "fused_list": "the same, fused with retrieval",
    "candidates_list": "the same, with candidates in the prompt",
    "free_list": "free list",
    "chat": "chat completion",
}


@dataclass(frozen=True)
class Comparison:
    """A row of the table of ratios.

    Attributes:
        part: what was timed.
        peer: with what it was compared.
        report: name of the kept report.
        ratio: report -> our time over the peer's; None if the benchmark ran without this peer.
    """

    part: str
    peer: str
    report: str
    ratio: Callable[[Report], float | None]


def _ratio_to(peer: str, part: str = "step") -> Callable[[Report], float | None]:
    """Return the ratio of a report of bench_training.py. part: "step" or "first_rollout"."""
    return lambda report: report["to"][peer][part]["median"] if peer in report["to"] else None


COMPARISONS = (
    Comparison("a step of Rank-GRPO, the demo's model", "verl's own GRPO trainer", "training", _ratio_to("stock")),
    Comparison("the same", "TRL's GRPO trainer", "peers", _ratio_to("trl")),
    Comparison("the same", "the paper's code", "peers", _ratio_to("paper")),
    Comparison("a step with SmolLM2-135M", "TRL's GRPO trainer", "peers_pretrained", _ratio_to("trl")),
    Comparison("the same", "the paper's code", "peers_pretrained", _ratio_to("paper")),
    Comparison(
        "from the command to the first rollout",
        "verl's own command",
        "training",
        _ratio_to("bare", "first_rollout"),
    ),
    Comparison(
        "SFT of SmolLM2-135M",
        "a plain PyTorch loop with Hugging Face's model",
        "engine",
        lambda report: report["plain_against_engine"],
    ),
    Comparison(
        "start of vLLM for an evaluation",
        "`ray.data.llm`",
        "replicas",
        lambda report: report["medians, s"]["ours, 1"]["start"] / report["medians, s"]["ray data, 1"]["start"],
    ),
    Comparison(
        "reward, exact matching, cold",
        "the paper's reward function",
        "matching",
        lambda report: report["modes"]["exact"].get("of the public reference"),
    ),
    Comparison(
        "reward, fuzzy matching, cold",
        "rapidfuzz's `cdist` of all lines and titles",
        "matching",
        lambda report: report["modes"]["fuzzy"]["of rapidfuzz on every line"],
    ),
    Comparison("policy loss with KL", "verl's vanilla loss", "loss", lambda report: report["times vanilla"]),
    Comparison("the same", "verl's GSPO loss", "loss", lambda report: report["times gspo"]),
    Comparison(
        "validation during training",
        "plain vLLM, the same prompts",
        "validation",
        lambda report: 1 / report["training / plain"],
    ),
    Comparison(
        "`convrec evaluate`, without its start",
        "plain vLLM, the same prompts",
        "validation",
        lambda report: 1 / report["evaluation / plain"],
    ),
    Comparison(
        "constrained decoding, sampled",
        "free decoding",
        "constrained_decoding",
        lambda report: report["sampled"]["ratio to free"]["constrained"],
    ),
    Comparison(
        "constrained decoding, greedy",
        "free decoding",
        "constrained_decoding",
        lambda report: report["greedy"]["ratio to free"]["constrained"],
    ),
    Comparison(
        "update under the constraint",
        "free, from whole logits",
        "constrained_update",
        lambda report: 1 / report["ratios"]["update"]["free"],
    ),
)


@dataclass(frozen=True)
class Growing:
    """A row of the table of growth.

    Attributes:
        part: what grows.
        report: name of the kept report.
        quantity: with what it grows, a name of bench_growth.py.
        figure: of the quantity; its last part is its unit.
    """

    part: str
    report: str
    quantity: str
    figure: str


GROWING = (
    Growing("a step, with its lists", "growth_steps", "step_lists", "step_s"),
    Growing("a step, with the prompt", "growth_steps", "step_prompts", "step_s"),
    Growing("a step, with the catalog", "growth_steps", "step_titles", "step_s"),
    Growing("a step, with the training rows", "growth_steps", "step_rows", "step_s"),
    Growing("credit of a batch", "growth", "lists", "credit_ms"),
    Growing("loss of a batch and its gradient", "growth", "lists", "loss_ms"),
    Growing("fuzzy index of the catalog", "growth", "matching", "index_s"),
    Growing("matching of a new line", "growth", "matching", "line_us"),
    Growing("encoding the lines of constrained lists", "growth", "trie", "encode_s"),
    Growing("building their trie", "growth", "trie", "build_s"),
    Growing("starting a list", "growth", "trie", "start_list_us"),
    Growing("fitting the retrieval", "growth", "retrieval", "fit_s"),
    Growing("its list for a request", "growth", "retrieval", "query_ms"),
    Growing("starting the front of a service", "growth", "serving", "start_s"),
    Growing("preparing a request", "growth", "serving", "request_ms"),
    Growing("a new condition (`where`, `allow`)", "growth", "serving", "new_condition_s"),
    Growing("adding an item", "growth", "serving", "add_item_s"),
    Growing("opening the table of RL", "growth", "rows", "open_s"),
    Growing("reading a row", "growth", "rows", "row_ms"),
    Growing("resuming in the middle", "growth", "rows", "resume_ms"),
    Growing("opening the table of SFT", "growth", "demonstrations", "open_s"),
    Growing("scoring an evaluation", "growth", "evaluation", "score_s"),
    Growing("comparing two models", "growth", "evaluation", "compare_s"),
)
UNITS = {"s": "s", "ms": "ms", "us": "µs"}


def read_report(name: str) -> Report:
    """Return a kept report; {} if there is none."""
    return read_kept(f"bench/{name}.json")


def speed_sections() -> str:
    """Return the sections."""
    return f"""## Speed beside what one would use instead
Time of this program over the other's, one after the other on the same cores; below 1 it is faster.
[Performance](performance.md) explains it.

{_comparison_table()}

A step of Rank-GRPO, medians of the steps after the second, in the last round:

{_peers_table(("peers", "peers_pretrained"))}{_learning_section("peers")}

## Serving beside `vllm serve`
The same model, on the same cores, in turns; seconds to the end of an answer, and in brackets the multiple of plain
vLLM's.

{_serving_table()}

## How cost grows
Slopes over the two upper decades, or all sizes if there are fewer: 1 is linear.

{_growth_table()}

## Where these figures come from
`make bench` writes them, `make keep` keeps them.

{_source_table()}"""


def _comparison_table() -> str:
    rows = [(one.part, one.peer, _describe_ratio(one), code(one.report)) for one in COMPARISONS]
    return table(("part", "compared with", "time ratio", "report"), rows)


def _describe_ratio(comparison: Comparison) -> str:
    report = read_report(comparison.report)
    ratio = comparison.ratio(report) if report else None
    return "not recorded yet" if ratio is None else f"{ratio:.2f}"


def _peers_table(names: Iterable[str]) -> str:
    rows = []
    for name in names:
        report = read_report(name)
        if report:
            lists = f"{report['batch']} x {report['rollouts']}, {report['response']} tokens, {report['dtype']}"
            rows += [
                (code(name), lists, RUNS[kind], *_run_cells(rounds[-1])) for kind, rounds in report["runs"].items()
            ]
    header = (
        "report",
        "lists of a step",
        "run",
        "step, s (quartiles)",
        "generation, s",
        "to the first rollout, s",
        "MiB",
    )
    return table(header, rows)


def _run_cells(figures: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a run in the table of peers, from the figures of its last round."""
    seconds = figures["step_seconds"]
    low, _, high = figures["step_quartiles"]
    return (
        f"{seconds['step']:.1f} ({low:.1f} to {high:.1f})",
        f"{seconds['gen']:.1f}",
        f"{figures['seconds_to_first_rollout']:.0f}",
        f"{figures['peak_MiB_in_all']:,}",
    )


def _learning_section(name: str) -> str:
    """Return what each peer's model has learned; "" if the benchmark ran without --evaluate."""
    report = read_report(name)
    if "evaluation" not in report:
        return ""
    rows = []
    for kind, figures in report["evaluation"].items():
        metric = next(key for key in figures if key.startswith("ndcg@"))
        gain = figures.get("gain")
        cells = (with_error(figures[metric]), with_error(gain, "+") if gain else "")
        rows.append((RUNS.get(kind, "before"), *cells))
    learned = table((f"after {report['steps']} steps", "NDCG", "gain, paired"), rows)
    return f"\n\nWhat the models had learned; the paper's code trains on its own reward, exact titles:\n\n{learned}"


def _serving_table() -> str:
    report = read_report("serving")
    if not report:
        return NOT_RECORDED
    rows = []
    for clients, kinds in report["levels"].items():
        for kind, name in SERVED.items():
            if kind in kinds:
                figures = kinds[kind]
                cells = (f"{figures[p]:.2f} ({figures['to_vllm'][p]:.2f})" for p in ("p50", "p95"))
                rows.append((clients, name, f"{figures['per_second']:.1f}", *cells))
    return table(("clients", "answer", "answers per second", "p50", "p95"), rows)


def _growth_table() -> str:
    rows = []
    for one in GROWING:
        report = read_report(one.report)
        if one.quantity not in report.get("growth", {}):
            continue
        growth = report["growth"][one.quantity]
        figure = growth["figures"][one.figure]
        unit = UNITS[one.figure.rpartition("_")[2]]
        values = figure["values"]
        sizes = f"{growth['sizes'][0]:,} to {growth['sizes'][-1]:,} {growth['unit']}"
        slope = "" if figure["slope"] is None else f"{figure['slope']:.2f}"
        rows.append((one.part, sizes, f"{values[0]:g} to {values[-1]:g} {unit}", slope))
    return table(("part", "from and to", "time", "slope"), rows) if rows else NOT_RECORDED


def _source_table() -> str:
    names = sorted(path.stem for path in (measured.MEASURED / "bench").glob("*.json"))
    return table(
        ("report", "machine"), [(code(name), describe_machine(read_report(name)["machine"])) for name in names]
    )
