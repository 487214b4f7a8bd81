// Tally runs "go test -json" with its own arguments in every module below the
// present directory, and says for people what happened: a line for each package
// as it ends, failures in full, every 20 seconds what still runs, and at the end
// "N passed, N failed" on a line of its own.
//
// Test functions are counted, not their subtests. A skipped test, or one with a
// skipped subtest, counts as failed: a check that did not happen must not look
// like one that held. What fails outside any test, such as a build, counts as
// one. The exit status is 1 if anything failed or nothing passed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	t := tally{out: os.Stdout}
	dirs, err := modules(".")
	for _, dir := range dirs {
		if err == nil {
			err = t.module(dir, os.Args[1:])
		}
	}
	if err != nil {
		t.fail(err.Error())
	}
	if !t.sum() {
		os.Exit(1)
	}
}

// modules lists the folders below root that have a go.mod, root first.
func modules(root string) (dirs []string, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "go.mod" {
			dirs = append(dirs, filepath.Dir(path))
		}
		return err
	})
	slices.Sort(dirs)
	return dirs, err
}

// module runs and counts the tests of one module.
func (t *tally) module(dir string, args []string) error {
	fmt.Fprintf(t.out, "module %s\n", dir)
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Args = append(cmd.Args, "./...")
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	before := t.failed
	readErr := t.read(stdout)
	if err := cmd.Wait(); err != nil && t.failed == before {
		t.fail(fmt.Sprintf("module %s: go test: %v", dir, err))
	}
	return readErr
}

// read counts the lines of r, and shows progress between them.
func (t *tally) read(r io.Reader) error {
	lines := make(chan []byte)
	done := make(chan error)
	go func() {
		s := bufio.NewScanner(r)
		s.Buffer(nil, 1<<24)
		for s.Scan() {
			lines <- slices.Clone(s.Bytes())
		}
		done <- s.Err()
	}()
	tick := time.NewTicker(20 * time.Second)
	defer tick.Stop()
	for {
		select {
		case line := <-lines:
			t.line(line)
		case <-tick.C:
			t.progress()
		case err := <-done:
			for pkg := range t.begun {
				t.fail(pkg + ": did not end")
			}
			t.begun = nil
			return err
		}
	}
}

// An event is one line of "go test -json": see "go doc test2json".
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string

	Elapsed float64
}

// A test is what a package or one test function has printed and how its tests
// ended.
type test struct {
	output  strings.Builder
	skipped []string
	failed  bool // something below it failed
}

type tally struct {
	out            io.Writer
	passed, failed int
	named          []string                    // what failed
	begun          map[string]map[string]*test // package, function or "" -> what has not ended
	builds         map[string]string
}

// line counts one line. One that is no event is passed on: the go command
// prints some of its own errors so.
func (t *tally) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil || e.Action == "" {
		fmt.Fprintf(t.out, "%s\n", line)
		return
	}
	switch e.Action {
	case "build-output":
		if t.builds == nil {
			t.builds = map[string]string{}
		}
		t.builds[e.ImportPath] += e.Output
		return
	case "build-fail":
		return
	}
	if t.begun == nil {
		t.begun = map[string]map[string]*test{}
	}
	if t.begun[e.Package] == nil {
		t.begun[e.Package] = map[string]*test{"": {}}
	}
	function, _, sub := strings.Cut(e.Test, "/")
	now := t.begun[e.Package][function]
	if now == nil {
		now = &test{}
		t.begun[e.Package][function] = now
	}
	switch e.Action {
	case "output":
		now.output.WriteString(e.Output)
	case "skip", "pass", "fail":
		if e.Action == "skip" && e.Test != "" {
			now.skipped = append(now.skipped, e.Test)
		}
		if sub {
			return
		}
		if e.Test != "" {
			delete(t.begun[e.Package], function)
			t.function(e, now)
			return
		}
		t.pkg(e)
	}
}

// function ends a test function.
func (t *tally) function(e event, now *test) {
	switch {
	case len(now.skipped) > 0:
		t.fail(fmt.Sprintf("%s %s: skipped", e.Package, strings.Join(now.skipped, ", ")))
	case e.Action == "fail":
		t.fail(e.Package + " " + e.Test)
	default:
		t.passed++
		return
	}
	t.begun[e.Package][""].failed = true
	fmt.Fprint(t.out, now.output.String())
}

// pkg ends a package. Functions that began and did not end were cut off by a
// panic or a timeout.
func (t *tally) pkg(e event) {
	all := t.begun[e.Package]
	delete(t.begun, e.Package)
	own := all[""]
	delete(all, "")
	word := map[string]string{"pass": "ok  ", "skip": "none", "fail": "FAIL"}[e.Action]
	if e.Action == "fail" {
		cut := make([]string, 0, len(all))
		for function := range all {
			cut = append(cut, function)
		}
		slices.Sort(cut)
		for _, function := range cut {
			fmt.Fprint(t.out, all[function].output.String())
			t.fail(e.Package + " " + function)
		}
		fmt.Fprint(t.out, t.builds[e.FailedBuild], own.output.String())
		if len(cut) == 0 && !own.failed {
			t.fail(e.Package)
		}
	}
	fmt.Fprintf(t.out, "%s %-60s %6.1f s\n", word, e.Package, e.Elapsed)
}

func (t *tally) fail(name string) {
	t.failed++
	t.named = append(t.named, name)
}

// progress says what has not ended.
func (t *tally) progress() {
	var running []string
	for pkg, functions := range t.begun {
		for function := range functions {
			if function != "" {
				running = append(running, pkg[strings.LastIndexByte(pkg, '/')+1:]+"."+function)
			}
		}
	}
	slices.Sort(running)
	what := strings.Join(running, ", ")
	switch {
	case what == "":
		what = "building"
	case len(running) > 5:
		what = strings.Join(running[:5], ", ") + fmt.Sprintf(" and %d more", len(running)-5)
	}
	fmt.Fprintf(t.out, "  .. %d passed, %d failed so far; now %s\n", t.passed, t.failed, what)
}

// sum prints the end, and reports whether all is well.
func (t *tally) sum() bool {
	for _, name := range t.named {
		fmt.Fprintf(t.out, "FAILED: %s\n", name)
	}
	fmt.Fprintf(t.out, "%d passed, %d failed\n", t.passed, t.failed)
	return t.failed == 0 && t.passed > 0
}
