#!/usr/bin/env bash
# Run mutmut on the modules that [tool.mutmut] in pyproject.toml names, or on those of the arguments (convrec/lists ...),
# and list the mutants that survive. mutmut is installed beside .venv, into the folder .venv-mutation.
#   PYTHONPATH=.venv-mutation .venv/bin/python scripts/mutation.py show MUTANT    prints what a mutant changes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VERSION=3.8.1
TOOLS=$PWD/.venv-mutation
if [ ! -d "$TOOLS/mutmut-$VERSION.dist-info" ]; then
  PYTHON=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
  export PYTHON
  rm -rf "$TOOLS"
  # the constraint: what .venv has too (pytest) has the same version
  scripts/uv.sh pip install --quiet --python .venv/bin/python --target "$TOOLS" --constraint requirements/cpu.txt \
    "mutmut==$VERSION"
fi

names=()
for path in "$@"; do
  path=${path%.py}
  path=${path%/}
  names+=("${path//\//.}.*")
done
mutation() { PYTHONPATH=$TOOLS .venv/bin/python scripts/mutation.py "$@"; }
export OMP_NUM_THREADS=1 # a mutant's process is a fork, which cannot use its parent's threads
rm -rf mutants           # an old copy may hold what has changed since
mutation run "${names[@]}"
mutation confirm "${names[@]}"
mutation results | grep -v ": not checked" || echo "no mutant survives"
