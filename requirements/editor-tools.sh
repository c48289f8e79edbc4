#!/bin/sh
# Install real editors for tests into .tools/: sh requirements/editor-tools.sh [NAME...], all of them without a name.
#   code-server   VS Code in a browser, with a driver for Chromium, from npm
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"

need() {
    command -v "$1" >/dev/null || { echo "$1 not found; on Debian: apt-get install $2" >&2; return 1; }
}

# The packages within it are locked by files of its own. None of their scripts is run: what they would build is not needed.
install_code_server() {
    need node nodejs
    need npm npm
    folder="$tools/code-server"
    vscode="$folder/node_modules/code-server/lib/vscode"
    rm -rf "$folder"
    mkdir -p "$folder"
    cp requirements/code-server/package.json requirements/code-server/package-lock.json "$folder"
    npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --loglevel error
    for part in "$vscode" "$vscode/extensions"; do
        npm install --prefix "$part" --omit=dev --ignore-scripts --no-audit --no-fund --loglevel error
    done
    date >"$folder/installed"
}

[ "$#" -gt 0 ] || set -- code-server
for name in "$@"; do
    case "$name" in
        code-server)
            cmp -s requirements/code-server/package-lock.json "$tools/code-server/package-lock.json" \
                && [ -e "$tools/code-server/installed" ] || install_code_server
            ;;
        *) echo "unknown: $name" >&2; exit 2 ;;
    esac
done
