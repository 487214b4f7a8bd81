package main

import (
	"strings"
	"testing"
)

// What "go test -json" prints is written out here: the verdict must not hang on
// the run that it judges.
func TestOnlyWhatRanAndHeldPasses(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		ok             bool
	}{
		{"subtests are part of their function", `
			{"Action":"run","Package":"p","Test":"TestA"}
			{"Action":"run","Package":"p","Test":"TestA/b"}
			{"Action":"pass","Package":"p","Test":"TestA/b"}
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"pass","Package":"p","Elapsed":1.25}`,
			"ok p 1.2 s\n1 passed, 0 failed\n", true},
		{"a skipped subtest fails its function", `
			{"Action":"output","Package":"p","Test":"TestA/b","Output":"why\n"}
			{"Action":"skip","Package":"p","Test":"TestA/b"}
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"pass","Package":"p"}`,
			"why\nok p 0.0 s\nFAILED: p TestA/b: skipped\n0 passed, 1 failed\n", false},
		{"a package without tests is no skipped test", `
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"pass","Package":"p"}
			{"Action":"skip","Package":"q"}`,
			"ok p 0.0 s\nnone q 0.0 s\n1 passed, 0 failed\n", true},
		{"a failure is shown once, in full", `
			{"Action":"output","Package":"p","Test":"TestA","Output":"said\n"}
			{"Action":"output","Package":"p","Test":"TestA/b","Output":"broken\n"}
			{"Action":"fail","Package":"p","Test":"TestA/b"}
			{"Action":"fail","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Output":"FAIL\n"}
			{"Action":"fail","Package":"p"}`,
			"said\nbroken\nFAIL\nFAIL p 0.0 s\nFAILED: p TestA\n0 passed, 1 failed\n", false},
		{"a panic fails what it cut off", `
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Test":"TestB","Output":"panic\n"}
			{"Action":"fail","Package":"p"}`,
			"panic\nFAIL p 0.0 s\nFAILED: p TestB\n1 passed, 1 failed\n", false},
		{"a package that cannot be built fails", `
			{"Action":"build-output","ImportPath":"p [p.test]","Output":"undefined: x\n"}
			{"Action":"build-fail","ImportPath":"p [p.test]"}
			{"Action":"start","Package":"p"}
			{"Action":"fail","Package":"p","FailedBuild":"p [p.test]"}`,
			"undefined: x\nFAIL p 0.0 s\nFAILED: p\n0 passed, 1 failed\n", false},
		{"a failing TestMain fails its package", `
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"output","Package":"p","Output":"exit status 1\n"}
			{"Action":"fail","Package":"p"}`,
			"exit status 1\nFAIL p 0.0 s\nFAILED: p\n1 passed, 1 failed\n", false},
		{"a run that is cut off fails", `
			{"Action":"pass","Package":"p","Test":"TestA"}`,
			"FAILED: p: did not end\n1 passed, 1 failed\n", false},
		{"no tests are no proof", `
			{"Action":"skip","Package":"p"}`,
			"none p 0.0 s\n0 passed, 0 failed\n", false},
		{"what is no event is passed on", `
			go: something
			{"Action":"pass","Package":"p","Test":"TestA"}
			{"Action":"pass","Package":"p"}`,
			"go: something\nok p 0.0 s\n1 passed, 0 failed\n", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			y := tally{out: &out}
			if err := y.read(strings.NewReader(strings.ReplaceAll(strings.TrimSpace(c.in), "\t", ""))); err != nil {
				t.Fatal(err)
			}
			if ok := y.sum(); ok != c.ok {
				t.Errorf("sum() = %v; want %v", ok, c.ok)
			}
			got := squeeze(out.String())
			if got != c.want {
				t.Errorf("said\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// squeeze makes one blank of each run of them: columns are not the promise.
func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}
