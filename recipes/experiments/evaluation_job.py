"""One evaluation of a matrix as a job of a cluster.

convrec evaluation-job '{"model": ..., "out": ..., "data": ..., "catalog": ...}'

The argument has the `EvaluationOptions`, as JSON.
"""

import json
import sys

from convrec.errors import UserError
from recipes.evaluation.options import EvaluationOptions
from recipes.evaluation.single import evaluate


def main(arguments: list[str]) -> int:
    try:
        metrics = evaluate(EvaluationOptions(**json.loads(arguments[0])))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for warning in metrics["warnings"]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0
