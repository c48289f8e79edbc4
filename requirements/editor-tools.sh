#!/bin/sh
# Install the real editors that tests drive into .tools/: sh requirements/editor-tools.sh [NAME...], all of them without a
# name. The machine's packages and sources stay as they are.
#   code-server   VS Code in a browser, with a driver for Chromium, from npm
#   lsp-node      VS Code's library of the Language Server Protocol, from npm
#   neovim        Neovim 0.12, from Debian
set -eu
cd "$(dirname "$0")/.."
tools="$PWD/.tools"
. requirements/tools.sh

# Neovim 0.12 or later, of which only sid has a package. It runs on any Debian: with the libraries of its own suite, which
# patchelf writes into it: Neovim starts itself again by the path of its file, so a script that names a loader won't do.
install_neovim() {
    root="$tools/neovim/root"
    # With an empty list of installed packages, this downloads all that Neovim needs, libc too.
    unpack_debian "$root" sid --yes --no-install-recommends --download-only install neovim patchelf \
        || { echo "Neovim 0.12 could not be installed" >&2; return 1; }
    libraries="$root/usr/lib/$(uname -m)-linux-gnu"
    loader="$(find "$libraries" -maxdepth 1 -name 'ld-linux-*.so.*' | head -n 1)"
    "$loader" --library-path "$libraries" "$root/usr/bin/patchelf" \
        --set-interpreter "$loader" --set-rpath "$libraries" "$root/usr/bin/nvim"
    cat >"$tools/neovim/nvim" <<END
#!/bin/sh
VIMRUNTIME="$root/usr/share/nvim/runtime" exec "$root/usr/bin/nvim" "\$@"
END
    chmod +x "$tools/neovim/nvim"
    "$tools/neovim/nvim" --version | head -n 1
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

[ "$#" -gt 0 ] || set -- code-server lsp-node neovim
for name in "$@"; do
    case "$name" in
        code-server) install_code_server ;;
        lsp-node) install_npm_packages "$name" ;;
        neovim) [ -x "$tools/neovim/nvim" ] || install_neovim ;;
        *) echo "unknown editor: $name; known: code-server, lsp-node, neovim" >&2; exit 2 ;;
    esac
done
