package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestThePlotIsOneSmallPicture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kinds.svg")
	status, out, _ := flowqps(t.Context(), "-for", "3s", "-plot", file)
	svg, err := os.ReadFile(file)
	if status != 0 || err != nil || !strings.HasSuffix(out, "verdict: kept\n") {
		t.Fatalf("status %d, %v\n%s", status, err, out)
	}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, words := range []string{"prefers-color-scheme:dark", "Rate with a queue", "Pace with a queue", "WarmUp: from 2 to 20 in 1.5 s", "time in seconds", "40 passed, 20 refused"} {
		if !bytes.Contains(svg, []byte(words)) {
			t.Errorf("no %q in\n%s", words, svg)
		}
	}
	if len(svg) > 60_000 || bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("%!")) {
		t.Errorf("%d bytes:\n%s", len(svg), svg)
	}
}

func TestAPlotThatCannotBeWrittenIsNoSuccess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none", "kinds.svg")
	status, out, err := flowqps(t.Context(), "-for", "1s", "-plot", file)
	if status != 1 || !strings.Contains(err, file) || strings.Contains(out, "verdict: kept") || strings.Contains(err, "each under") { // told before the work
		t.Errorf("status %d, %q\n%s", status, err, out)
	}
}

func TestAnInterruptedPlotIsNotDrawn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kinds.svg")
	ctx, interrupt := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer interrupt()
	status, _, err := flowqps(ctx, "-plot", file)
	if _, none := os.Stat(file); status != 1 || none == nil || !strings.Contains(err, "nothing is drawn") {
		t.Errorf("status %d, %q, and the file: %v", status, err, none)
	}
}
