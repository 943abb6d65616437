#!/usr/bin/env bash
# install_torch.sh ENVIRONMENT VERSION: the CPU build of torch, from a folder that pip or uv is told of, else from PyTorch's own
# index. Where neither has it, the package index has a build of the same version with CUDA's libraries, which runs without a
# GPU. $PYTHON is whose pip is asked for its settings.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ENVIRONMENT=$1 VERSION=$2
say() { printf '[setup] torch %s: %s\n' "$VERSION" "$*" >&2; }
install() { scripts/uv.sh pip install --quiet --python "$ENVIRONMENT/bin/python" "$@"; }
pip_setting() { "$PYTHON" -m pip config get "global.$1" 2>/dev/null || true; }

TAG=$("$ENVIRONMENT/bin/python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
LINKS="${UV_FIND_LINKS:-} ${PIP_FIND_LINKS:-} $(pip_setting find-links)"
for folder in ${LINKS//,/ }; do
  folder=${folder#file://}
  if compgen -G "$folder/torch-$VERSION+cpu-$TAG-*.whl" >/dev/null || compgen -G "$folder/torch-$VERSION%2Bcpu-$TAG-*.whl" >/dev/null; then
    say "its CPU build in $folder"
    install --no-deps --find-links "$folder" "torch==$VERSION+cpu"
    exit
  fi
done
if install --no-deps --torch-backend cpu "torch==$VERSION" 2>/dev/null; then
  say "its CPU build, from PyTorch's index"
  exit
fi
say "PyTorch's index is out of reach; the build of the package index, with CUDA's libraries (some 3 GB)"
if [ "$ENVIRONMENT" = .venv ]; then set -- --constraint requirements/gpu.txt; else set --; fi
install "$@" "torch==$VERSION"
