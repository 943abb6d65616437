#!/usr/bin/env bash
# Run mutmut on the modules that [tool.mutmut] in pyproject.toml names, or on those of the arguments (convrec/lists ...), and
# list the mutants that survive. mutmut is installed into .venv-mutation, which sees the packages of .venv.
#   .venv-mutation/bin/python scripts/mutation.py show MUTANT    prints what a mutant changes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VERSION=3.8.1
TOOL=.venv-mutation/bin/python
if [ "$("$TOOL" -c 'from importlib.metadata import version; print(version("mutmut"))' 2>/dev/null)" != "$VERSION" ]; then
  PYTHON=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
  export PYTHON
  scripts/uv.sh venv --quiet --clear --python "$PYTHON" .venv-mutation
  scripts/uv.sh pip install --quiet --python "$TOOL" --constraint requirements/cpu.txt "mutmut==$VERSION"
  purelib() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
  purelib .venv/bin/python >"$(purelib "$TOOL")/project.pth"
fi

names=()
for path in "$@"; do
  path=${path%.py}
  path=${path%/}
  names+=("${path//\//.}.*")
done
export OMP_NUM_THREADS=1 # a mutant's process is a fork, which cannot use its parent's threads
"$TOOL" scripts/mutation.py run "${names[@]}"
"$TOOL" scripts/mutation.py confirm "${names[@]}"
"$TOOL" scripts/mutation.py results
