#!/bin/sh
# Generate the Python stubs beside the contract: sh proto/generate.sh [OUT]
set -eu
cd "$(dirname "$0")"
out="${1:-.}"
python -m grpc_tools.protoc -I. --python_out="$out" --grpc_python_out="$out" --mypy_out=quiet:"$out" \
    --mypy_grpc_out=quiet:"$out" completion/v1/completion.proto completion/v1/admin.proto
