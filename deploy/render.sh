#!/bin/sh
# Print what a folder of deploy/ makes, and refuse what still has placeholders: sh deploy/render.sh deploy/regions/us-east
set -eu
[ $# -eq 1 ] || { echo "usage: sh deploy/render.sh FOLDER" >&2; exit 2; }
rendered="$("${KUSTOMIZE:-kustomize}" build "$1")"
if found="$(printf '%s\n' "$rendered" | grep -nE 'example\.com|CHANGE-ME|sha256:0{64}|value: 00000000-0000-0000-0000-000000000000$')"; then
    printf '%s has placeholders (deploy/README.md, from nothing to three regions):\n%s\n' "$1" "$found" >&2
    exit 1
fi
printf '%s\n' "$rendered"
