#!/bin/sh
# Generate the TypeScript stubs from the contract: sh editors/stubs/generate.sh [OUT], with the Python of .venv on PATH.
set -eu
cd "$(dirname "$0")"
out="${1:-src}"
proto=../../proto
options=esModuleInterop=true,env=node,forceLong=number,oneof=unions-value,outputIndex=false,outputJsonMethods=false
options=$options,outputServices=grpc-js,outputTypeRegistry=false,removeEnumPrefix=true,stringEnums=false,useAsyncIterable=false
options=$options,useExactTypes=false,unrecognizedEnum=false
python -m grpc_tools.protoc -I "$proto" -I "$proto/third_party" \
    --plugin=protoc-gen-ts_proto=../node_modules/.bin/protoc-gen-ts_proto \
    --ts_proto_out="$out" --ts_proto_opt="$options" \
    completion/v1/completion.proto google/rpc/status.proto google/rpc/error_details.proto
