#!/usr/bin/env bash
# Rank-GRPO on nodes of a SLURM cluster: a Ray cluster for the time of the job, and the recipe submitted to it.
#   TRAIN_FILE=... VAL_FILE=... CATALOG_FILE=... MODEL_PATH=... SAVE_PATH=... sbatch docs/examples/slurm.sh
# RECIPE=run_sft.sh trains SFT, which needs no CATALOG_FILE. Submit it from the checkout, which lies, as data and models
# do, on storage that all nodes see; the same command resumes. IMAGE=convrec.sif takes the packages from an image in place of .venv:
#   make image && apptainer build convrec.sif docker-daemon:convrec:0.2.0-gpu
#SBATCH --job-name=rank-grpo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@900
#SBATCH --open-mode=append
#SBATCH --requeue
set -euo pipefail
: "${RECIPE:=run_rank_grpo.sh}" "${TRAIN_FILE:?}" "${VAL_FILE:?}" "${MODEL_PATH:?}" "${SAVE_PATH:?}"
[ "$RECIPE" = run_sft.sh ] || : "${CATALOG_FILE:?}"
HERE=${SLURM_SUBMIT_DIR:?run it with sbatch}
export PATH="$HERE/.venv/bin:$PATH" SAVE_PATH
inside=() # what starts a program with the packages
if [ -n "${IMAGE:-}" ]; then inside=(apptainer exec --nv --bind "$HERE" "$IMAGE"); fi

# Who reaches the dashboard runs programs on the nodes: a token of this job's own, which goes with it
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HERE/.ray-token-$SLURM_JOB_ID"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
export RAY_USAGE_STATS_ENABLED=0 RAY_USAGE_STATS_REPORT_URL=off # Ray reports nothing to its makers
(umask 077 && "${inside[@]}" python -c 'import secrets; print(secrets.token_hex(32))' > "$RAY_AUTH_TOKEN_PATH")

# 15 minutes before the end (--signal): a checkpoint at the end of the step, then exit status 130
trap 'mkdir -p "$SAVE_PATH" && touch "$SAVE_PATH/stop"' USR1

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1') # not `head`: who is cut off ends the script
# the first IPv4 address that other nodes can reach: /etc/hosts often gives the host's name 127.0.1.1
addresses=$(srun --nodes=1 --ntasks=1 --nodelist="$head" bash -c 'hostname --ip-address; hostname --all-ip-addresses')
address=$(tr ' ' '\n' <<< "$addresses" | awk '/^[0-9.]+$/ && !/^127\./ && !found { print; found = 1 }')
: "${address:?$head has no address but the loopback ($addresses)}"
run= # the recipe's process
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}" # srun has not taken it from the job since SLURM 22.05
deadline=$((SECONDS + ${NODES_SECONDS:-900}))
give_up() {
  echo "error: $1: see the words of srun and ray above" >&2
  [ -z "$run" ] || kill "$run" 2> /dev/null || true # SLURM may not know it as the job's
  exit 1
}
all_run() { # the steps that start Ray stay as long as the job
  for step in "${steps[@]}"; do kill -0 "$step" 2> /dev/null || return 1; done
}
wait_for_nodes() { # $1: what is waited for
  all_run || give_up "a step that starts Ray has ended"
  [ "$SECONDS" -lt "$deadline" ] || give_up "$1 after ${NODES_SECONDS:-900} s"
  sleep 2
}
ulimit -n 65536 2> /dev/null || true
# where SLURM does not know whose GPUs they are, its steps have ROCR_VISIBLE_DEVICES too, which verl's workers refuse
ray=("${inside[@]}" env --unset=ROCR_VISIBLE_DEVICES ray)
srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
  "${ray[@]}" start --head --node-ip-address="$address" --port=6379 --dashboard-host="$address" --block &
steps=($!)
until "${inside[@]}" ray health-check --address "$address:6379" > /dev/null 2>&1; do
  wait_for_nodes "Ray's head does not answer"
done
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
  # --ntasks too: the job's own, SLURM_NTASKS, is one more than these nodes have
  srun --overlap --nodes="$others" --ntasks="$others" --ntasks-per-node=1 --exclude="$head" --kill-on-bad-exit=1 \
    "${ray[@]}" start --address="$address:6379" --block &
  steps+=($!)
fi

nodes='import ray; ray.init(log_to_driver=False); print(sum(node["Alive"] for node in ray.nodes()))'
# a limit: where the head has died meanwhile, ray.init waits for it for minutes
until here=$(RAY_ADDRESS="$address:6379" timeout -s KILL 40 "${inside[@]}" python -c "$nodes" 2> /dev/null) &&
  [ "$here" = "$SLURM_JOB_NUM_NODES" ]; do
  wait_for_nodes "${here:-no} of $SLURM_JOB_NUM_NODES nodes joined Ray"
done

export RAY_ADDRESS="http://$address:8265" N_NODES="$SLURM_JOB_NUM_NODES" N_GPUS_PER_NODE="$SLURM_GPUS_ON_NODE"
"${inside[@]}" bash "$HERE/$RECIPE" "$@" &
run=$! lost=
while kill -0 "$run" 2> /dev/null; do
  # a node that is lost the run names in some 40 s; with the head its log is gone, and who follows it waits for minutes
  all_run || lost=${lost:-$SECONDS}
  [ -z "$lost" ] || [ "$SECONDS" -lt $((lost + ${LOST_SECONDS:-55})) ] || give_up "a step that starts Ray has ended"
  sleep 2 || true # USR1 ends it
done
wait "$run"
