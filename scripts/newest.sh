#!/usr/bin/env bash
# Runs the tests of the adapters and examples against the newest versions of their
# frameworks that the newest released Go accepts. They are listed by name, so that
# a run today and a run in a year test the same; "go list -m -versions" tells what
# came since. go.mod has the lowest versions that work, and all other checks use
# those.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

newest=(
	github.com/gin-gonic/gin@v1.12.0
	github.com/labstack/echo/v4@v4.16.4
	github.com/labstack/echo/v5@v5.4.5
	google.golang.org/genproto/googleapis/rpc@v0.0.0-20261110000943-09e21b237f2c
	google.golang.org/grpc@v1.85.0
	google.golang.org/protobuf@v1.36.12
)

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R . "$copy"
cd "$copy"
go get "${newest[@]}"
for named in "${newest[@]}"; do
	got=$(go list -mod=mod -m -f '{{.Path}}@{{.Version}}' "${named%@*}")
	if [ "$got" != "$named" ]; then
		echo "$named was asked for, and $got chosen" >&2
		exit 1
	fi
done
go test -mod=mod ./nethttpflow/... ./ginflow/... ./echoflow/... ./echo5flow/... ./grpcflow/... ./examples/...
