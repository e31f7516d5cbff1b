#!/usr/bin/env bash
# On a computer with an NVIDIA GPU: builds Tandem for it, runs the whole suite there, the demo on one GPU split in two, and
# NVIDIA's compute-sanitizer on the kernels' tests. Needs the CUDA Toolkit, g++, Meson, Ninja, fmt and Catch2, and nothing
# from the network. Further options for Meson may follow, such as -Dnvidia_roots=FOLDER.
set -uo pipefail
cd "$(dirname "$0")/../.."
build=build-gpu

missing=()
for tool in g++ meson ninja nvidia-smi; do command -v "$tool" >/dev/null || missing+=("$tool"); done
if ((${#missing[@]})); then
  printf 'missing: %s\n' "${missing[*]}" >&2
  exit 2
fi
nvidia-smi -L || exit 2
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)

passed=() failed=()
step() { # NAME COMMAND...
  local name=$1
  shift
  printf '\n=== %s\n' "$name"
  SECONDS=0
  if "$@"; then passed+=("$name"); else failed+=("$name"); fi
  printf '=== %s: %d s\n' "$name" "$SECONDS"
}

if [[ ! -f $build/build.ninja ]]; then
  meson setup "$build" -Dcuda=enabled "-Dgpu_archs=$arch" -Dtests=enabled -Dbench=disabled "$@" || exit 2
fi
ninja -C "$build" || exit 2

# Tests want four devices.
gpus=$(nvidia-smi -L | wc -l)
TANDEM_DEVICES_PER_GPU=$(((gpus + 3) / gpus)) step suite meson test -C "$build" --no-rebuild --print-errorlogs
if [[ -x $build/examples/digits ]]; then
  TANDEM_DEVICES_PER_GPU=$((gpus > 1 ? 1 : 2)) step demo "$build/examples/digits" --devices cuda:0,cuda:1
fi

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [[ -n $sanitizer ]]; then
  for tool in memcheck racecheck synccheck initcheck; do
    step "compute-sanitizer $tool" timeout 300 "$sanitizer" --tool "$tool" --error-exitcode 1 --print-limit 5 \
      "$build/tests/kernels/test-cuda" '*softmax*,*cross_entropy*,*norm*,*index*,*sort*,*reduc*'
  done
else
  printf 'compute-sanitizer is not there: skipped\n'
fi

printf '\npassed: %s\n' "$(IFS=';'; printf '%s' "${passed[*]}")"
printf 'failed: %s\n' "$(IFS=';'; printf '%s' "${failed[*]:-none}")"
((${#failed[@]} == 0))
