#!/bin/sh
# Install the real editors that tests drive into .tools/: sh requirements/editor-tools.sh [NAME...], all of them without a
# name. The machine's packages and sources stay as they are.
#   code-server   VS Code in a browser, with a driver for Chromium, from npm
#   helix, neovim
#                 from Debian sid
#   lsp-node      VS Code's library of the Language Server Protocol, from npm
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"
. requirements/tools.sh

# install_editor NAME PACKAGE BINARY VARIABLE RUNTIME: an editor of Debian sid, started by .tools/NAME/NAME. It runs on any
# Debian with the libraries of its own suite. patchelf writes them into the binary, since Neovim starts itself again by the
# path of its file.
install_editor() {
    root="$tools/$1/root"
    # With an empty list of installed packages, this downloads all that the editor needs, libc too.
    unpack_debian "$root" sid --yes --no-install-recommends --download-only install "$2" patchelf \
        || { echo "$1 could not be installed" >&2; return 1; }
    libraries="$root/usr/lib/$(uname -m)-linux-gnu"
    loader="$(find "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*' | head -n 1)"
    "$loader" --library-path "$libraries" "$root/usr/bin/patchelf" \
        --set-interpreter "$loader" --set-rpath "$libraries" "$root/$3"
    cat >"$tools/$1/$1" <<END
#!/bin/sh
$4="$root/$5" exec "$root/$3" "\$@"
END
    chmod +x "$tools/$1/$1"
    "$tools/$1/$1" --version | head -n 1
}

# The packages within it are locked by files of its own. None of their scripts is run: what they would build is not needed.
install_code_server() {
    vscode="$tools/code-server/node_modules/code-server/lib/vscode"
    install_npm_packages code-server
    for part in "$vscode" "$vscode/extensions"; do
        [ -e "$part/node_modules/installed" ] && continue
        npm install --prefix "$part" --omit=dev --ignore-scripts --no-audit --no-fund --loglevel error
        date >"$part/node_modules/installed"
    done
}

[ "$#" -gt 0 ] || set -- code-server helix lsp-node neovim
for name in "$@"; do
    case "$name" in
        code-server) install_code_server ;;
        # Inline completions came with 0.12.
        neovim) [ -x "$tools/neovim/neovim" ] || install_editor neovim neovim usr/bin/nvim VIMRUNTIME usr/share/nvim/runtime ;;
        helix) [ -x "$tools/helix/helix" ] || install_editor helix hx usr/lib/hx/hx HELIX_RUNTIME usr/lib/hx/runtime ;;
        lsp-node) install_npm_packages "$name" ;;
        *) echo "unknown editor: $name; known: code-server, helix, lsp-node, neovim" >&2; exit 2 ;;
    esac
done
