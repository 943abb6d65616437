#!/usr/bin/env bash
# Of the runs of asking.yaml: the same weights with users who say nothing of use, or do not answer; each against the
# never-asking run of its seed. What is there is not evaluated again. notes/asking.md
set -euo pipefail
OUT=${OUT:-outputs/asking}
ASK=${ASK:-genre decade}
evaluate() { # NAME RUN OPTION...
  local out=$OUT/controls/$1 run=$2 seed=${2##*-}
  shift 2
  [ -f "$out/metrics.json" ] || convrec evaluate --model "$run" --out "$out" --against "$OUT/evaluation/never-$seed" \
    --data "$OUT/data/test.parquet" --catalog "$OUT/data/catalog.parquet" --train "$OUT/data/train.parquet" \
    --ask $ASK --max-prompt-length "${PROMPT:-320}" --max-response-length "${RESPONSE:-100}" "$@"
}
for run in "$OUT"/ask-*; do
  name=$(basename "$run")
  evaluate "$name-other" "$run" --user other
  evaluate "$name-random" "$run" --user random
  evaluate "$name-silent" "$run" --user rule --max-turns 1
done
