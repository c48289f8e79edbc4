#!/bin/sh
# Fail if the page that the server ships is not what its sources build now. Nothing is checked without Node.
set -eu
cd "$(dirname "$0")"
command -v npm >/dev/null || { echo "npm not found: the page is not checked."; exit 0; }
[ -x node_modules/.bin/esbuild ] || npm ci --ignore-scripts --no-audit --no-fund --loglevel error
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
npm run --silent check
OUT="$fresh" npm run --silent build
shipped=../../completion_server/api/http/playground/static
diff -rq "$fresh" "$shipped" >/dev/null || { echo "$shipped is stale: make playground" >&2; exit 1; }
echo "The page is fresh."
