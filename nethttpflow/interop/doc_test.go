package interop

import (
	"bytes"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// What the documentation tells to copy is what is tested here, to the letter.
func TestTheDocumentationShowsWhatIsTested(t *testing.T) {
	files := token.NewFileSet()
	doc, err := parser.ParseFile(files, "../doc.go", nil, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	for line := range strings.Lines(doc.Doc.Text()) {
		shown.WriteString(strings.TrimPrefix(line, "\t"))
	}
	for file, names := range map[string][]string{"chi_test.go": {"ahead", "routed"}, "connect_test.go": {"refuseRPC", "procedures"}} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if text, err = format.Source(text); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			_, from, found := bytes.Cut(text, []byte("\nfunc "+name+"("))
			body, _, closed := bytes.Cut(from, []byte("\n}\n"))
			if !found || !closed || !strings.Contains(shown.String(), "func "+name+"("+string(body)+"\n}\n") {
				t.Errorf("%s is not as in %s", name, file)
			}
		}
	}
}
