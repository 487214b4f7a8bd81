#!/usr/bin/env bash
# Proves what a user of one package pays: the module is zipped as the Go proxy
# would, served from a folder, and required by programs of one import each.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

module=github.com/exactflow/exactflow
version=v0.1.0
tree=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/zip"
cd "$work/zip"
cat >main.go <<'GO'
package main

import (
	"log"
	"os"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

func main() {
	out, err := os.Create(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	if err := zip.CreateFromDir(out, module.Version{Path: os.Args[2], Version: os.Args[3]}, os.Args[1]); err != nil {
		log.Fatal(err)
	}
	if err := out.Close(); err != nil {
		log.Fatal(err)
	}
}
GO
go mod init zip 2>/dev/null
go get golang.org/x/mod@v0.43.0

proxy=$work/proxy/$module/@v
mkdir -p "$proxy"
go run . "$tree" "$module" "$version" "$proxy/$version.zip"
cp "$tree/go.mod" "$proxy/$version.mod"
echo "$version" >"$proxy/list"
echo "{\"Version\":\"$version\"}" >"$proxy/$version.info"

# A module cache of its own, so that this v0.1.0 is never taken for a real one.
# What is not in the folder comes from the module cache that this machine has, or
# else from its proxy.
GOPROXY="file://$work/proxy,file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPROXY GONOSUMDB=$module GOFLAGS="-modcacherw -mod=mod" GOMODCACHE=$work/cache

# consumer PACKAGE [COMMAND...] goes on in a program, read from standard input,
# that requires the module for one package of it, and runs the command there.
consumer() {
	mkdir "$work/$1"
	cd "$work/$1"
	cat >main.go
	go mod init consumer 2>/dev/null
	go get "$module/$1@$version"
	"${@:2}"
	# All that is compiled, less this module and the standard library.
	go list -deps . | grep -E '^[^/]+\.' | grep -v "^$module/" >third || true
	requires=$(go mod edit -json | grep -c '"Version":')
	sums=$(wc -l <go.sum)
	echo "$1: $requires requirements, $sums sums, $(wc -l <third) packages of others"
}

# no PATTERN says that none of the packages of others matches.
no() {
	if grep -E "$1" third >&2; then
		echo "${PWD##*/} brings these along" >&2
		exit 1
	fi
}

# alone says that no other module came along: not a line of go.mod or go.sum.
alone() {
	no .
	if [ "$requires" != 1 ] || [ "$sums" != 2 ]; then
		cat go.mod go.sum >&2
		exit 1
	fi
}

# Tidying asks for what the tests of the core need, too.
consumer core go mod tidy <<'GO'
package main

import (
	"fmt"
	"time"

	"github.com/exactflow/exactflow/core"
)

func main() {
	l, err := core.New(core.Rule{Name: "all", Limit: core.Rate{N: 1, Per: time.Hour}})
	if err != nil {
		panic(err)
	}
	_, first := l.Try(core.Request{On: "job"})
	_, second := l.Try(core.Request{On: "job"})
	fmt.Println(first, second)
}
GO
alone
[ "$(go run .)" = "true false" ]

consumer nethttpflow <<'GO'
package main

import "github.com/exactflow/exactflow/nethttpflow"

func main() { _ = nethttpflow.Middleware }
GO
alone

consumer ginflow <<'GO'
package main

import "github.com/exactflow/exactflow/ginflow"

func main() { _ = ginflow.Middleware }
GO
no '^google.golang.org/grpc|labstack'

consumer echoflow <<'GO'
package main

import "github.com/exactflow/exactflow/echoflow"

func main() { _ = echoflow.Middleware }
GO
no '^google.golang.org/|gin-gonic'

consumer echo5flow <<'GO'
package main

import "github.com/exactflow/exactflow/echo5flow"

func main() { _ = echo5flow.Middleware }
GO
no '^google.golang.org/|gin-gonic|labstack/echo/v4'

consumer grpcflow <<'GO'
package main

import "github.com/exactflow/exactflow/grpcflow"

func main() { _ = grpcflow.UnaryServerInterceptor }
GO
no 'gin-gonic|labstack'
