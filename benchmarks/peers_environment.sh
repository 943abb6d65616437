#!/usr/bin/env bash
# Make the peers of bench_training.py --peers FOLDER: FOLDER/trl, TRL for this project's environment; FOLDER/paper/code,
# a clone of the paper's code; FOLDER/paper/venv, an environment with the TRL that it extends; FOLDER/paper/imports, what
# its reward function needs in this project's environment, for bench_matching.py. Needs what scripts/setup_env.sh needs,
# and git.
#   benchmarks/peers_environment.sh FOLDER [URL [COMMIT]]
set -euo pipefail
FOLDER=$(realpath -m "${1:?the folder in which to make the environments}")
URL=${2:-https://github.com/yaochenzhu/Rank-GRPO}
COMMIT=${3:-0808d82c0807396c07b4f4815a6f9bd9c4f03ae8}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=$(.venv/bin/python -c 'import sys; print(sys._base_executable)')
export PYTHON
# The paper's TRL, with releases of the same weeks. Torch is this project's: only the code is to differ.
TORCH=$(sed -n 's/^torch==//p' requirements/torch-cpu.txt)
PACKAGES=(trl==0.21.0 transformers==4.55.4 tokenizers==0.21.4 huggingface-hub==0.34.4 accelerate==1.10.1
  datasets==4.0.0 pyarrow==21.0.0 numpy==2.2.6 pandas==2.3.2 editdistance==0.8.1 regex==2025.7.34)

mkdir -p "$FOLDER/paper"
scripts/uv.sh pip install --quiet --no-deps --target "$FOLDER/trl" trl==1.16.0
scripts/uv.sh pip install --quiet --no-deps --target "$FOLDER/paper/imports" editdistance==0.8.1
[ -e "$FOLDER/paper/code" ] || git clone --quiet "$URL" "$FOLDER/paper/code"
git -C "$FOLDER/paper/code" -c advice.detachedHead=false checkout --quiet "$COMMIT"
scripts/uv.sh venv --quiet --clear --python "$PYTHON" "$FOLDER/paper/venv"
scripts/install_torch.sh "$FOLDER/paper/venv" "$TORCH"
scripts/uv.sh pip install --quiet --python "$FOLDER/paper/venv/bin/python" "torch==$TORCH" "${PACKAGES[@]}"
