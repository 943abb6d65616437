"""Does credit by rank beat credit by list? Trains and evaluates a study's runs, and compares them as its plan says.

    LR_GRPO=... LR_GSPO=... LR_EXP_INF=... LR_LOG_DECAY=... \\
        python -m benchmarks.studies.ranks.study benchmarks/studies/ranks/study.yaml

Runs the matrix (convrec matrix; stopped, it resumes). Of each pair of tables.AT_EQUAL_KL it then evaluates on the test
rows the checkpoints that are equally far from their start. OUT, the matrix's, gets

study.md   the variants at the last step, their pairs there, at equal KL and by wanted titles, the steps to a level
study.png  NDCG@20 on validation over the steps, the same over the KL, and where in the list the hits come from

The plan and its results: notes/rank_study.md.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.studies.ranks.figure import draw
from benchmarks.studies.ranks.runs import Study
from benchmarks.studies.ranks.tables import TABLES
from convrec.base.errors import UserError
from convrec.base.files import write_text
from recipes import matrix


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("matrix", type=Path, help="study.yaml or redial.yaml of this folder")
    parser.add_argument(
        "--as-far-as-it-is", action="store_true", help="train nothing: compare what is evaluated so far"
    )
    options = parser.parse_args()
    if not options.as_far_as_it_is and (status := matrix.main([str(options.matrix)])):
        return status
    try:
        study = Study(options.matrix)
    except UserError as error:
        print(error.as_line(), file=sys.stderr)
        return 2
    if not study.runs:
        print(f"error: {study.out}: no run is evaluated yet", file=sys.stderr)
        return 2
    text = "\n".join(line for table in TABLES for line in table(study)).lstrip()
    write_text(study.out / "study.md", text + "\n")
    draw(study, study.out / "study.png")
    print(f"{text}\n\nwritten to {study.out}/study.md and study.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
