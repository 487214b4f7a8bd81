package core_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/doc"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the public surface to testdata/api.txt")

const surface = "testdata/api.txt"

// Who reviews a change sees in one file what users will see of it. A line lost
// from it can break them.
func TestThePublicSurfaceIsTheOneWrittenDown(t *testing.T) {
	var got strings.Builder
	for _, pkg := range slices.Sorted(maps.Keys(allowed)) {
		if strings.HasPrefix(pkg, "internal/") {
			continue // for our own packages only
		}
		fmt.Fprintf(&got, "package %s\n\n%s", pkg, render(t, filepath.Join("..", pkg)))
	}
	if *update {
		if err := os.WriteFile(surface, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(surface)
	if err != nil {
		t.Fatal(err)
	}
	if diff := compare(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("the public surface has changed (-: written down, +: in the code). If that is meant, run\n"+
			"\tgo test ./core -run Surface -update\nand say in CHANGELOG.md why.\n%s", diff)
	}
}

func TestTheComparisonShowsWhatChanged(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"a b c", "a b c", ""},
		{"a b c", "a c", "-b\n"},
		{"a c", "a b c", "+b\n"},
		{"a b c", "a x c d", "-b\n+x\n+d\n"},
		{"a b", "b a", "-a\n+a\n"},
	} {
		if got := compare(strings.Fields(c.a), strings.Fields(c.b)); got != c.want {
			t.Errorf("compare(%s, %s) = %q; want %q", c.a, c.b, got, c.want)
		}
	}
}

// render is what a package exports, as Go without comments and bodies.
func render(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	if files == nil {
		t.Fatalf("no Go files in %s", dir)
	}
	p, err := doc.NewFromFiles(fset, files, dir)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	show := func(decl ast.Node) {
		var one bytes.Buffer
		if err := printer.Fprint(&one, fset, decl); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(one.String()) {
			if strings.TrimSpace(line) != "" {
				out.WriteString(line)
			}
		}
		out.WriteString("\n\n")
	}
	values := func(vs []*doc.Value) {
		for _, v := range vs {
			show(v.Decl)
		}
	}
	funcs := func(fs []*doc.Func) {
		for _, f := range fs {
			f.Decl.Body = nil
			show(f.Decl)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, typ := range p.Types {
		show(typ.Decl)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		funcs(typ.Methods)
	}
	// Aligned anew, so that no comment that stood between leaves a mark.
	text, err := format.Source(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(text)) + "\n\n"
}

// compare lists what the longest run of lines common to both leaves out of a, as
// -, and of b, as +.
func compare(a, b []string) string {
	long := make([][]int, len(a)+1) // long[i][j]: how many lines a[i:] and b[j:] share
	for i := range long {
		long[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				long[i][j] = long[i+1][j+1] + 1
			} else {
				long[i][j] = max(long[i+1][j], long[i][j+1])
			}
		}
	}
	var out strings.Builder
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && long[i+1][j] >= long[i][j+1]:
			out.WriteString("-" + a[i] + "\n")
			i++
		default:
			out.WriteString("+" + b[j] + "\n")
			j++
		}
	}
	return out.String()
}
