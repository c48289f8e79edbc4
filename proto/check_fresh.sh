#!/bin/sh
# Fail if the committed stubs are not what the contract generates now.
set -eu
cd "$(dirname "$0")"
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
sh ./generate.sh "$fresh"
for stub in "$fresh"/completion/v1/*; do
    cmp -s "$stub" "completion/v1/$(basename "$stub")" || { echo "proto/completion/v1/$(basename "$stub") is stale: make proto" >&2; exit 1; }
done
echo "Stubs are fresh."
