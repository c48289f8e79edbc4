#!/bin/sh
# Renew the locked lists: sh requirements/lock.sh (needs uv, which the development list brings).
set -eu
cd "$(dirname "$0")"
lock() { uv pip compile "$@" --python-version 3.11 --generate-hashes --no-header --no-emit-find-links \
    --no-emit-package torch --no-annotate --quiet >/dev/null; }
lock cpu.in --overrides cpu-overrides.in -o cpu.txt
lock dev.in -o dev.txt
if [ "${1:-}" = cuda ]; then lock cuda.in -o cuda.txt; fi
