#!/usr/bin/env bash
# Rank-GRPO training. Variables: docs/reference/settings.md, or --help; arguments: Hydra overrides. Exit status: the run's.
#   TRAIN_FILE=... VAL_FILE=... CATALOG_FILE=... MODEL_PATH=... bash run_rank_grpo.sh [key=value ...]
# With RAY_ADDRESS=http://head:8265 the run is submitted to that cluster and followed.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${PYTHON:-$(for bin in "${VIRTUAL_ENV:-none}/bin" "$HERE/.venv/bin"; do [ -x "$bin/convrec" ] && echo "$bin/python" && exit; done; echo python)}
export PYTHONPATH="$HERE${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m recipes train rank-grpo "$@"
