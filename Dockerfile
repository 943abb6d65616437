# convrec for GPUs or, with --build-arg EXTRA=cpu, for CPUs: `make image`, docs/how-to/install.md. Versions are locked.
# BASE: Debian or Ubuntu whose python3 is 3.11 or 3.12, with venv and headers.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}
ARG EXTRA=gpu
ARG UV_VERSION=0.13.8
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# a compiler for Triton's and Inductor's kernels, libnuma for vLLM on a CPU, wget for KubeRay's probes and the health
# check; Debian keeps no old ones
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ libnuma1 wget \
    && rm -rf /var/lib/apt/lists/*

# packages before code: a change of code sends no packages again; with byte code, which user 1000 could not keep
WORKDIR /opt/convrec
ENV VIRTUAL_ENV=/opt/convrec/.venv PATH=/opt/convrec/.venv/bin:$PATH \
    UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
COPY requirements ./requirements
COPY scripts/uv.sh scripts/install_torch.sh ./scripts/
RUN python3 -m venv .venv \
    && pip install --no-cache-dir "uv==${UV_VERSION}" \
    && uv pip install --no-deps --requirement "requirements/${EXTRA}.txt"
RUN if [ "${EXTRA}" = cpu ]; then \
      PYTHON=python3 scripts/install_torch.sh .venv "$(sed -n 's/^torch==//p' requirements/torch-cpu.txt)" \
      && uv pip install --no-deps ./requirements/vllm-cpu-alias; \
    fi

COPY pyproject.toml setup.py README.md LICENSE runtime_env.yaml run_sft.sh run_rank_grpo.sh ./
COPY conf ./conf
COPY reward ./reward
COPY data_prep ./data_prep
COPY recipes ./recipes
COPY convrec ./convrec
RUN uv pip install --no-deps --editable . \
    && python -m compileall -q convrec data_prep recipes reward \
    && useradd --create-home --uid 1000 convrec

LABEL org.opencontainers.image.title="convrec" \
      org.opencontainers.image.description="Rank-GRPO for conversational recommenders on verl, Ray and vLLM" \
      org.opencontainers.image.version="0.2.0" \
      org.opencontainers.image.licenses="Apache-2.0"
USER 1000
WORKDIR /home/convrec
EXPOSE 8000
# of `convrec serve`; a container that trains answers nothing there, and its exit status says how it went
HEALTHCHECK --interval=30s --timeout=5s --start-period=15m \
    CMD ["bash", "-c", "wget --quiet --output-document=/dev/null http://127.0.0.1:${PORT:-8000}/health"]
CMD ["convrec", "--help"]
