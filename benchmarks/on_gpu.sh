#!/usr/bin/env bash
# What a machine with a CUDA GPU can show, in at most ten minutes: rounds against the bare loop and pfl, rounds of the experiments,
# an attack and an audit. Writes results/gpu_*.json; each step has a time limit, and what fails does not stop the others.
set -uo pipefail

cd "$(dirname "$0")/.."
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --list-gpus 2>/dev/null | grep -q GPU; then
    echo "on_gpu.sh: this machine has no CUDA GPU" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MLFLOW_TRACKING_URI=none OMP_NUM_THREADS=1
results=benchmarks/results
failed=0

step() { # seconds, name, command...
    local limit=$1 name=$2
    shift 2
    echo "== $name (at most $limit s)"
    timeout "$limit" "$@" || { echo "on_gpu.sh: $name failed, or took more than $limit s" >&2; failed=1; }
}

export work results

step 120 "installation" bash -c 'uv venv --quiet "$work/env" && uv pip install --quiet --python "$work/env/bin/python" --editable .'
[ "$failed" = 0 ] || exit 1
timeout 60 uv pip install --quiet --python "$work/env/bin/python" "pfl>=0.6,<0.7" || echo "pfl cannot be installed here: it is left out"
python="$work/env/bin/python"
step 20 "torch sees the GPU" "$python" -c 'import torch; torch.zeros(1, device="cuda"); print(torch.cuda.get_device_name())'
[ "$failed" = 0 ] || exit 1
step 100 "W1 and a replayed step" "$python" benchmarks/gpu_cost.py --workload W1 --rounds 3 --json "$results/gpu_cost_w1.json"
step 100 "W2" "$python" benchmarks/gpu_cost.py --workload W2 --rounds 3 --json "$results/gpu_cost_w2.json"
step 80 "rounds of the experiments" "$python" benchmarks/gpu_rounds.py --only simprox/cifar10 --share 0.1 --json "$results/gpu_rounds.json"
step 30 "a run" "$work/env/bin/fedpriv" train --method fedavg --rounds 2 --device cuda --tracking-uri none --run-dir "$work/run"
step 30 "an attack" bash -c '"$work/env/bin/fedpriv" attack analytic --run "$work/run" --round 1 --json >"$results/gpu_attack.json"'
step 60 "an audit" bash -c '"$work/env/bin/fedpriv" audit "$work/run" --budget 20s --json >"$results/gpu_audit.json"'
exit "$failed"
