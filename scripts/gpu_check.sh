#!/usr/bin/env bash
# Check everything that needs a GPU: tests, training speed, translation speed, and then the training of a recipe if one is given.
# Each part but the last has its time, eight minutes in all. A part that fails does not stop the others, and the exit status is
# 1 if any failed.
#
#     scripts/gpu_check.sh [OUT [RECIPE [KEY=VALUE...]]]
#
# OUT, by default build/gpu_check, gets the log of each part and the figures as JSON. PYTHON names the interpreter, by default
# .venv/bin/python or python3.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu_check}
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
export PYTHONPATH=src:benchmarks${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$out"
status=0
# run NAME SECONDS COMMAND...
run() {
  local name=$1 seconds=$2 started=$SECONDS code
  shift 2
  timeout "$seconds" "$@" >"$out/$name.log" 2>&1
  code=$?
  echo "$name: $([ $code = 0 ] && echo passed || echo "failed with status $code") after $((SECONDS - started)) s"
  [ $code = 0 ] || { status=1 && tail -n 40 "$out/$name.log"; }
}
"$python" -c 'import sys, torch; torch.cuda.is_available() or sys.exit("PyTorch finds no CUDA device"); print(torch.cuda.get_device_name(), torch.__version__)' || exit 2
run tests 180 "$python" -m pytest -q -m gpu -p no:cacheprovider tests/system/test_gpu.py tests/inference/backends/test_exactly_once.py
run training-speed 120 "$python" -m training.gpu --quick --json "$out/training.json"
run translation-speed 150 "$python" -m inference.gpu --quick --json "$out/inference.json"
for name in training-speed translation-speed; do grep -v '^ *$' "$out/$name.log" | tail -n 16; done
[ $# -lt 2 ] || run training 86400 "$python" -m dragoman train "${@:2}"
exit $status
