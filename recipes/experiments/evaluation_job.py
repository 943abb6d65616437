"""One evaluation of a matrix as a job of a cluster.

python -m recipes.experiments.evaluation_job '{"model": ..., "out": ..., "data": ..., "catalog": ...}'

The argument has the `EvaluationOptions`, as JSON.
"""

if __name__ == "__main__":  # before imports that take seconds
    from convrec.runs import supervisor

    supervisor.begin()

import json
import sys

from convrec.errors import UserError
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate


def main() -> int:
    try:
        metrics = evaluate(EvaluationOptions(**json.loads(sys.argv[1])))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for warning in metrics["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
