"""docs/explanation/status.md: what has been tested, where and when, from the files in notes/measured/."""

from collections.abc import Iterable
from datetime import date
from typing import Any, NamedTuple

import yaml

from reference_pages import measured
from reference_pages.markdown import code, table
from reference_pages.measured import describe_machine, read_kept, shorten_commit, with_error
from reference_pages.speed import speed_sections

# Tiers of tests, with the command that runs each; `make keep` keeps what the last runs recorded.
TIERS = {
    "quick": "make test",
    "e2e": "make test",
    "long": "make test-long",
    "faults": "make test-faults",
    "slow": "make test-slow",
    "tutorials": "make tutorials",
}
PLACES = ("one_gpu", "several_gpus", "kubernetes")


def status_page() -> str:
    """Return the page."""
    records = read_records()
    not_run = "\n".join(f"- {what}" for what in records["not_run"])
    return f"""
# What has been tested, and where
This page is made of the files in `notes/measured/`: what the tests, the demos and the benchmarks of this repository
wrote, and a list of other runs. [What the studies found](results.md) has the results of methods and settings.

- **No full-scale run has been made with this code.** Every result in this manual comes from a small model.
- **Nothing has run on two GPUs.**
- A CPU runs the same versions of verl, Ray, torch and transformers as a GPU, with vLLM's CPU build in place of vLLM.
- The defaults are the paper's full-scale settings. Planned times come from [a model of the time](planning.md).

## In short
"Yes" on two CPU cores: all tests that train or run it passed in their last recorded run.

{_area_table(records["areas"])}

## Tests
The last recorded runs, by tier. A tier may have run in parts: each file counts with its own date and commit.

{_tier_table()}

## The demo
{_demo_table("demo")}

## The demo with a pretrained model
{_demo_table("pretrained")}

{speed_sections()}

## On a GPU
{_record_table(records["gpu"])}

## On a cluster
Besides the tests of two nodes above. A key planted in the environment of submitter and nodes appears in no file or log.

{_record_table(records["cluster"])}

## When something dies
Besides `make test-faults`, which runs as root, with each run alone in its namespaces. The list of what it tries is in
`notes/reliability.md`.

{_record_table(records["faults"])}

## Serving
{_record_table(records["serving"])}

## Models and data
{_record_table(records["models"] + records["data"])}

## Judges
{_record_table(records["judges"])}

## Not run

{not_run}
"""


class Tests(NamedTuple):
    """Results of test files, summed up."""

    passed: int
    failed: int
    skipped: int
    minutes: float
    first: date
    last: date
    commits: tuple[str, ...]


def sum_up(records: Iterable[dict[str, Any]]) -> Tests:
    """Sum the results of test files up.

    Args:
        records: values of a file that `pytest --record` wrote; at least one.
    """
    there = list(records)
    days = sorted(date.fromisoformat(record["date"][:10]) for record in there)
    return Tests(
        passed=sum(record["passed"] for record in there),
        failed=sum(record["failed"] for record in there),
        skipped=sum(record["skipped"] for record in there),
        minutes=sum(record["minutes"] for record in there),
        first=days[0],
        last=days[-1],
        commits=tuple(dict.fromkeys(map(shorten_commit, there))),
    )


def read_records() -> dict[str, Any]:
    return yaml.safe_load((measured.MEASURED / "records.yaml").read_text(encoding="utf-8"))


def _tier_table() -> str:
    rows = []
    for tier, command in TIERS.items():
        if not (records := read_kept(f"tests/{tier}.json").values()):
            rows.append((code(command), tier, "not recorded", "", "", "", ""))
            continue
        found = sum_up(records)
        days = f"{found.first}" if found.first == found.last else f"{found.first} to {found.last}"
        commits = ", ".join(map(code, found.commits))
        counts = (str(found.passed), str(found.failed), str(found.skipped))
        rows.append((code(command), tier, *counts, f"{found.minutes:.0f}", f"{days}, {commits}"))
    return table(("command", "tier", "passed", "failed", "skipped", "minutes", "run"), rows)


def _area_table(areas: list[dict[str, Any]]) -> str:
    rows = []
    for area in areas:
        on_cpu = describe_cpu_runs(area["tests"]) if "tests" in area else f"by hand: {area['by_hand']}"
        elsewhere = (area.get(place, "no") for place in PLACES)
        rows.append((area["area"], on_cpu, *elsewhere))
    return table(("area", "two CPU cores", "one GPU", "several GPUs", "Kubernetes"), rows)


def describe_cpu_runs(files: list[str]) -> str:
    """Return "yes" if every one of these test files has passed, else what is missing."""
    tiers = [read_kept(f"tests/{tier}.json") for tier in TIERS]
    found = {file: [tier[file] for tier in tiers if file in tier] for file in files}
    missing = [file for file, records in found.items() if not records]
    if missing:
        return f"not recorded: {', '.join(map(code, missing))}"
    failed = [file for file, records in found.items() if sum_up(records).failed]
    return f"failed: {', '.join(map(code, failed))}" if failed else "yes"


def _demo_table(name: str) -> str:
    """Return a demo's table of models, with its gain, its duration and its machine."""
    summary = read_kept(f"{name}.json")
    if not summary:
        return "Not recorded."
    cutoff = max(int(key.partition("@")[2]) for key in summary["gain"] if key.startswith("ndcg@"))
    metrics = (f"recall@{cutoff}", f"ndcg@{cutoff}")
    rows = (
        (code(model), *(with_error(values[metric]) for metric in metrics))
        for model, values in summary["models"].items()
    )
    gain = summary["gain"][metrics[1]]
    count = summary["gain"]["n"]
    minutes = sum(summary["seconds"].values()) / 60
    return f"""{table(("lists of", f"Recall@{cutoff}", f"NDCG@{cutoff}"), rows)}

Rank-GRPO minus SFT, paired by conversation: {gain["mean"]:+.4f} ± {gain["se"]:.4f} of NDCG@{cutoff}, {count}
conversations. {minutes:.1f} minutes,
{describe_machine(summary["machine"])}."""


def _record_table(records: list[dict[str, Any]]) -> str:
    rows = ((one["what"], one["machine"], one["result"], f"{one['date']}, {code(one['source'])}") for one in records)
    return table(("what", "machine", "result", "when, and details"), rows)
