#!/usr/bin/env bash
# Make .venv with everything that the project uses. Quick when nothing changed: a stamp holds the hash of what decides.
# Usage: scripts/setup.sh [PYTHON]     (default: python3; 3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-${PYTHON:-python3}}
venv=.venv
stamp=$venv/.aka-setup
want=$(cat pyproject.toml constraints.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then exit 0; fi
begun=$(date +%s)

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: $python is older than Python 3.11" >&2; exit 1; }
have_uv() { command -v uv >/dev/null 2>&1; }
echo "setup: making $venv with $(have_uv && echo uv || echo pip)" >&2
if [ ! -x "$venv/bin/python" ]; then "$python" -m venv "$venv"; fi
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# The constraints were resolved for Python 3.11; jax pairs with another libtpu from 3.12 on.
constraints=()
if [ "$version" = 3.11 ]; then constraints=(--constraint constraints.txt); fi
install() {
    # Copies, not hard links: llama-index's tokenizer data refuses files with several links.
    if have_uv; then uv pip install --quiet --python "$venv/bin/python" --link-mode copy "$@"
    else "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; fi
}

# sentence-transformers needs torch. Only a CPU build is wanted: the CUDA one is gigabytes that nothing here uses.
cpu_torch() {
    [ "$(uname -s)" = Darwin ] && return 0
    if have_uv && uv pip install --quiet --python "$venv/bin/python" --link-mode copy --torch-backend cpu "torch>=2.13,<2.14" 2>/dev/null; then return 0; fi
    "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --dry-run --no-deps --report - "torch>=2.13,<2.14" 2>/dev/null \
        | "$venv/bin/python" -c '
import json, sys
found = json.load(sys.stdin)["install"][0]
sys.exit("+cpu" not in found["metadata"]["version"] + found["download_info"]["url"].replace("%2B", "+"))' 2>/dev/null
}
if cpu_torch; then
    if have_uv && ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "torch>=2.13,<2.14"
    fi
    install "${constraints[@]}" -e ".[dev,st]"
else
    install "${constraints[@]}" -e ".[dev]"
    echo "setup: no CPU build of torch for Python $version was found, so sentence-transformers is left out;" >&2
    echo "setup: the index is built with the ONNX twin of the same model instead (see aka doctor)" >&2
fi
echo "$want" > "$stamp"
echo "setup: done in $(( $(date +%s) - begun )) s, $(du -sm "$venv" | cut -f1) MB in $venv" >&2
