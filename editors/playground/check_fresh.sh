#!/bin/sh
# Fail if the page that the server ships is not what its sources build now. Without its packages from npm nothing is
# checked: make playground installs them.
set -eu
cd "$(dirname "$0")"
if [ ! -x node_modules/.bin/esbuild ]; then
    echo "The page is not checked: make playground installs what builds it."
    exit 0
fi
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
npm run --silent check
OUT="$fresh" npm run --silent build
shipped=../../completion_server/http/playground/static
diff -rq "$fresh" "$shipped" >/dev/null || { echo "$shipped is stale: make playground" >&2; exit 1; }
echo "The page is fresh."
