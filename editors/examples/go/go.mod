// Stubs: protoc -I ../../../proto --go_out=. --go-grpc_out=. --go_opt="$P" --go-grpc_opt="$P" completion/v1/completion.proto
// with P=module=example.com/plugin,Mcompletion/v1/completion.proto=example.com/plugin/completion/v1; then: go mod tidy
module example.com/plugin

go 1.19
