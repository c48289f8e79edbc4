#!/bin/sh
# Fail if the committed TypeScript stubs are not what the contract generates now.
set -eu
cd "$(dirname "$0")"
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
sh ./generate.sh "$fresh"
(cd "$fresh" && find . -name '*.ts') | while read -r stub; do
    cmp -s "$fresh/$stub" "src/$stub" || { echo "editors/stubs/src/$stub is stale: make proto" >&2; exit 1; }
done
echo "TypeScript stubs are fresh."
