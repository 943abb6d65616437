"""Keep what the last runs left in outputs/: results of tests, demos, benchmarks and the example matrix.

python scripts/keep_results.py [FOLDER]    FOLDER: another clone's outputs/; the default is this one's

Results of test files are added to those that are kept; those of a demo, of a
benchmark and of the matrix replace them. An absolute
path is shortened to its last part.
"""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.machine import describe_machine  # noqa: E402  a script finds only its own folder

MEASURED = ROOT / "notes" / "measured"
DEMOS = ("demo", "pretrained")
# Of a demo's summary: without its paths.
KEPT_OF_A_DEMO = ("models", "gain", "seconds", "versions")
# Of the matrix: the columns of table.csv that begin so and `run`, and all of pairs.csv.
KEPT_METRICS = ("ndcg@20", "recall@20")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "outputs")
    outputs = parser.parse_args().folder
    for source in sorted(outputs.glob("tests/*.json")):
        kept = MEASURED / "tests" / source.name
        _write(kept, {**_read(kept), **_read(source)})
    for source in sorted(outputs.glob("bench/*.json")):
        _write(MEASURED / "bench" / source.name, _shorten_paths(_read(source)))
    for name in DEMOS:
        source = outputs / name / "summary.json"
        if source.exists():
            summary = _read(source)
            figures = {key: summary[key] for key in KEPT_OF_A_DEMO}
            _write(MEASURED / f"{name}.json", {"machine": _describe_run(source.parent / "rank_grpo"), **figures})
    matrix = outputs / "matrix"
    if (matrix / "table.csv").exists():
        runs = {row["run"]: _keep_metrics(row) for row in _read_csv(matrix / "table.csv")}
        compared = _read_csv(matrix / "pairs.csv")
        pairs = {f"{row['variant']} minus {row['minus']}": _keep_metrics(row) for row in compared}
        trained = next(name for name in reversed(runs) if (matrix / name / "starts.jsonl").exists())
        kept = {"machine": _describe_run(matrix / trained), "runs": runs, "pairs": pairs}
        _write(MEASURED / "matrix.json", kept)
    return 0


def _describe_run(folder: Path) -> dict[str, Any]:
    """Return this machine, with the time and the commit of the run's last start."""
    last = (folder / "starts.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    start = json.loads(last)
    return {**describe_machine(), "date": start["time"], "commit": start["commit"]}


def _read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _keep_metrics(row: dict[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value and name.startswith(KEPT_METRICS)}


def _shorten_paths(value: Any) -> Any:
    """Return a report in which each absolute path is its last part."""
    match value:
        case dict():
            return {key: _shorten_paths(one) for key, one in value.items()}
        case list():
            return [_shorten_paths(one) for one in value]
        case str():
            return " ".join(Path(word).name if word.startswith("/") else word for word in value.split(" "))
    return value


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write one entry per line, so that a change shows what has changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
