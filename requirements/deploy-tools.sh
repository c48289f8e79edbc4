#!/bin/sh
# Install what tests need beside Python into .tools/: kustomize from Debian, by apt with a source list of its own, and from
# npm the types of custom resources and a gRPC client. The machine's packages and sources stay as they are.
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"
. requirements/apt.sh

# A rebuild by Debian (+b2, +b3) is the same kustomize.
kustomize_version=5.6.0+ds-1
kustomize_suite=trixie

install_kustomize() {
    unpack_debian "$tools/kustomize" "$kustomize_suite" download "kustomize=$kustomize_version*" \
        || { echo "install kustomize 5.6 or later on PATH instead" >&2; return 1; }
    "$tools/kustomize/usr/bin/kustomize" version
}

# install_npm_packages NAME: those of requirements/NAME.
install_npm_packages() {
    for tool in node npm; do
        command -v "$tool" >/dev/null || { echo "$tool not found; on Debian: apt-get install nodejs npm" >&2; return 1; }
    done
    rm -rf "$tools/$1"
    mkdir -p "$tools/$1"
    cp "requirements/$1/package.json" "requirements/$1/package-lock.json" "$tools/$1"
    # Some packages ask for a newer Node, and work with 20; none has a script to run.
    npm ci --prefix "$tools/$1" --ignore-scripts --no-audit --no-fund --loglevel error
    date >"$tools/$1/installed"
}

[ -x "$tools/kustomize/usr/bin/kustomize" ] || install_kustomize
for name in crd-schemas contract-node; do
    cmp -s "requirements/$name/package-lock.json" "$tools/$name/package-lock.json" \
        && [ -e "$tools/$name/installed" ] || install_npm_packages "$name"
done
