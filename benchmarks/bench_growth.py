"""How time and memory grow with the catalog, the training rows, the conversations and the lists. Prints JSON.

python benchmarks/bench_growth.py [--only matching serving] [--largest 1000000] [--repeats 5]
python benchmarks/bench_growth.py --demo outputs/demo --only step_lists step_prompts

Each quantity is measured at several sizes, by default powers of ten, each size in a process of its own
(benchmarks/growth/harness.py). `slope` is the least squares slope of the figures over the two upper decades, both in
logarithms: 1 is linear, 2 quadratic, 0 constant. Figures are medians of CPU time with one thread of numpy and torch
(`encode_s` includes the tokenizer's threads); `wall_s` is a size's whole measurement by the clock, and `mib` its
largest resident set above that of the imports. Of a call that takes long there are fewer repeats. Tables of the figures
go to the standard error.

On generated data:

matching        titles: load the catalog, index it, read a new line of a list; misspelt titles that are found, and those
                that are taken for another item
trie            titles: encode the lines, build, write and read the trie; one step of LISTS lists, all at the widest
                place, each with EXCLUDED items excluded
serving         titles: start the recommender without its engine (the trie's file is there); prepare a request, one with
                a new condition, one with the same again; list popular items; add an item
retrieval       titles: fit on FEW_ROWS conversations, load, rank
corpus          conversations of training, 7,404 titles: fit the retrieval, load, rank
rows            rows of training for RL: open the file, read a row, shuffle and read the first batch, resume in the
                middle, draw a hundredth of the rows
demonstrations  rows of training for SFT: the same of its dataset
evaluation      conversations: read the split, score the lists, summarise them, compare two models
lists           lists of a batch, 20 ranks: credit, loss with its gradient
ranks           ranks of FEW_LISTS lists: the same

With --demo, a folder that `make demo` has left, also whole steps of Rank-GRPO on all cores, by the clock: medians of at
least three steps, after two that do not count. `mib` is what all processes of the run hold together.

step_lists      lists of a step, 8 to 128
step_prompts    tokens of a prompt, 128 to 2,048, 32 lists: the demo's conversations, repeated and cut
step_titles     titles of the catalog, 2,000 to 200,000, 32 lists
step_rows       rows of training, 1,000 to 100,000, 32 lists
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.growth import batch, evaluation, retrieval, rows, serving, step, titles
from benchmarks.growth.harness import LARGEST, Quantity, format_table, measure_growth, measure_size
from benchmarks.machine import print_report

QUANTITIES: dict[str, Quantity] = {
    **titles.QUANTITIES,
    **serving.QUANTITIES,
    **retrieval.QUANTITIES,
    **rows.QUANTITIES,
    **evaluation.QUANTITIES,
    **batch.QUANTITIES,
    **step.QUANTITIES,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[*QUANTITIES], metavar="QUANTITY", help="(all)")
    parser.add_argument("--largest", type=int, default=LARGEST, help="sizes above are left out (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--demo", type=Path, help="folder of a finished demo, for the quantities that train")
    parser.add_argument("--files", type=Path, help="folder for the generated files (a temporary one)")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)  # of a child
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.only or [name for name, quantity in QUANTITIES.items() if options.demo or not quantity.needs_demo]
    if options.size:
        run_as_child(QUANTITIES[names[0]], options)
        return
    for name in names:
        if QUANTITIES[name].needs_demo and not options.demo:
            parser.error(f"--only {name} needs --demo FOLDER")
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as temporary:
        options.files = options.files or Path(temporary)
        options.files.mkdir(parents=True, exist_ok=True)
        if options.demo:
            link_demo(options.demo, options.files)
        growth = {name: measure_in_children(name, options) for name in names}
    print_report({"growth": growth})


def run_as_child(quantity: Quantity, options: argparse.Namespace) -> None:
    """Prepare or measure one size."""
    if options.prepare:
        quantity.prepare(options.size, options.files)
    else:
        print(json.dumps(measure_size(quantity, options.size, options.repeats, options.files)))


def link_demo(demo: Path, files: Path) -> None:
    """Let FILES/demo be the demo's folder."""
    link = files / "demo"
    link.unlink(missing_ok=True)
    link.symlink_to(demo.resolve(), target_is_directory=True)


def measure_in_children(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure a quantity at all sizes and print its table."""
    command = [sys.executable, __file__, "--only", name, "--repeats", str(options.repeats)]
    growth = measure_growth(QUANTITIES[name], options.largest, [*command, "--files", str(options.files)])
    print(f"\n{name}\n{format_table(growth)}", file=sys.stderr, flush=True)
    return growth


if __name__ == "__main__":
    main()
