#!/usr/bin/env bash
# Run the pinned uv (from PATH, else installed into .venv-uv by $PYTHON) with pip's index and certificates: uv does not read
# pip's settings.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
UV_VERSION=0.13.8
OWN=$ROOT/.venv-uv/bin
PYTHON=${PYTHON:-$([ -x "$OWN/python" ] && echo "$OWN/python" || echo python3)}

is_pinned() { [ "$("$1" --version 2>/dev/null | cut -d' ' -f2)" = "$UV_VERSION" ]; }

if is_pinned uv; then
  UV=uv
else
  UV=$OWN/uv
  if ! is_pinned "$UV"; then
    printf '[setup] installing uv %s into .venv-uv\n' "$UV_VERSION" >&2
    rm -rf "$ROOT/.venv-uv"
    "$PYTHON" -m venv "$ROOT/.venv-uv" >&2 || {
      echo "[setup] $PYTHON cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv." >&2
      exit 1
    }
    "$OWN/python" -m pip install --quiet --disable-pip-version-check "uv==$UV_VERSION" >&2 || {
      echo "[setup] pip could not install uv $UV_VERSION from the package index." >&2
      exit 1
    }
  fi
fi

pip_setting() { "$PYTHON" -m pip config get "global.$1" 2>/dev/null || true; }

if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
  INDEX=${PIP_INDEX_URL:-$(pip_setting index-url)}
  if [ -n "$INDEX" ]; then export UV_DEFAULT_INDEX=$INDEX; fi
fi
if [ -z "${SSL_CERT_FILE:-}" ]; then
  CERTIFICATE=${PIP_CERT:-$(pip_setting cert)}
  if [ -n "$CERTIFICATE" ]; then export SSL_CERT_FILE=$CERTIFICATE; fi
fi
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} # trust the machine's certificates, as pip does
exec "$UV" "$@"
