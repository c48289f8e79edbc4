#!/bin/sh
# Renew the locked lists: `sh requirements/lock.sh` those for a CPU, calibration and development, `sh requirements/lock.sh
# cuda` the one for CUDA, on any machine. Locked versions stay if they can; delete a list to take the newest of
# everything. Needs uv, which the development list brings, and for the CPU an index or folder that has torch's CPU build.
set -eu
cd "$(dirname "$0")"
lock() { uv pip compile "$@" --python-version 3.11 --generate-hashes --no-header --no-emit-find-links --no-annotate \
    --quiet >/dev/null; }
case "${1:-cpu}" in
cpu)
    lock ../pyproject.toml --extra cpu --extra streaming --extra train --extra loadtest cpu.in --overrides cpu-overrides.in \
        --no-emit-package torch --no-emit-package completion-client -o cpu.txt
    lock dev.in --overrides cpu-overrides.in -o dev.txt
    (cd ../deploy/image && lock sbom.in -o sbom.txt)
    lock calibration.in --overrides cpu-overrides.in --no-emit-package torch -o calibration.txt
    ;;
cuda)
    lock ../pyproject.toml --extra cuda --extra streaming --extra train --extra loadtest cuda.in --overrides cuda-overrides.in \
        --python-platform x86_64-manylinux_2_28 --no-emit-package completion-client -o cuda.txt
    ;;
*)
    echo "usage: sh requirements/lock.sh [cpu|cuda]" >&2
    exit 2
    ;;
esac
