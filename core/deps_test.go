package core_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/exactflow/exactflow/"

// allowed says what each package of the library may import beyond the standard
// library, and why: a path is good for what is below it too. Who uses only one
// package is then spared what the others need. Tests may import what their
// package may, and inTests; what else only tests need lives in a module of its
// own.
var allowed = map[string]map[string]string{
	"core":              {},
	"internal/options":  {module + "core": "which rules a store cannot keep"},
	"internal/clientip": {},
	"internal/longlived": {
		module + "core":              "what is tested",
		module + "flowtest":          "how an adapter is described",
		"golang.org/x/net/websocket": "a client that upgrades; the frameworks require the module anyway",
	},
	"flowtest": {
		module + "core": "what is tested",
	},
	"nethttpflow": {
		module + "core":              "the limiter",
		module + "internal/options":  "wrong options are refused by all adapters in the same words",
		module + "internal/clientip": "who the client is, the same for HTTP and gRPC",
	},
	"ginflow": {
		module + "core":             "the limiter",
		module + "internal/options": "wrong options are refused by all adapters in the same words",
		module + "nethttpflow":      "keys, statuses, headers and the body of a refusal are those of HTTP",
		"github.com/gin-gonic/gin":  "the framework",
	},
	"echoflow": {
		module + "core":               "the limiter",
		module + "internal/options":   "wrong options are refused by all adapters in the same words",
		module + "nethttpflow":        "keys, statuses, headers and the body of a refusal are those of HTTP",
		"github.com/labstack/echo/v4": "the framework",
	},
	"echo5flow": {
		module + "core":               "the limiter",
		module + "internal/options":   "wrong options are refused by all adapters in the same words",
		module + "nethttpflow":        "keys, statuses, headers and the body of a refusal are those of HTTP",
		"github.com/labstack/echo/v5": "the framework",
	},
	"grpcflow": {
		module + "core":                                        "the limiter",
		module + "internal/options":                            "wrong options are refused by all adapters in the same words",
		module + "internal/clientip":                           "who the client is, the same for HTTP and gRPC",
		"google.golang.org/grpc":                               "the framework",
		"google.golang.org/protobuf":                           "messages in the details of a refusal",
		"google.golang.org/genproto/googleapis/rpc/errdetails": "the details of a refusal",
	},
}

// inTests says what the tests of adapters may import beyond that, and why.
var inTests = map[string]string{
	module + "flowtest":                   "the promises that all adapters keep",
	module + "internal/longlived":         "what lives longer than a request, for all adapters to HTTP",
	module + "nethttpflow":                "flowtest's documentation tells how an adapter writes its keys",
	"golang.org/x/net/websocket":          "a client that upgrades; the frameworks require the module anyway",
	"google.golang.org/grpc/test/bufconn": "a network in memory, for servers in a bubble's time",
}

// forbidden says which packages of the standard library the core does not
// import, and why.
var forbidden = map[string]string{
	"expvar":   "statistics are for the caller to publish, and expvar serves HTTP by being imported",
	"log":      "what the core has to say is in its results",
	"log/slog": "what the core has to say is in its results",
	"net":      "a key is text; what an address is, the adapters know",
	"net/http": "a limiter for a queue or a file carries no server",
	"os":       "the core reads no environment, no arguments and no files",
	"unsafe":   "what is exact does not hang on how memory is laid out",
}

// apart is what is no part of the library, by folder, and what it may import
// beyond the library and what that imports. Nothing imports it.
var apart = map[string]map[string]string{
	"examples": {"golang.org/x/time/rate": "the control in flowqps, which the demo must convict"},
	"scripts":  {},
}

func TestEveryImportHasAReason(t *testing.T) {
	found := imports(t)
	for pkg := range allowed {
		if found[pkg] == nil {
			t.Errorf("%s is in the table and not in the tree", pkg)
		}
	}
	for pkg, files := range found {
		for file, imps := range files {
			for _, imp := range imps {
				if why := judge(pkg, imp, strings.HasSuffix(file, "_test.go")); why != "" {
					t.Errorf("%s imports %s: %s", file, imp, why)
				}
			}
		}
	}
}

func TestTheTableCanSayNo(t *testing.T) {
	for pkg, imps := range map[string][]string{
		"core":             {"net/http", "unsafe", "golang.org/x/time/rate", module + "nethttpflow"},
		"nethttpflow":      {"github.com/gin-gonic/gin", "golang.org/x/net/websocket", module + "ginflow"},
		"ginflow":          {"github.com/gin-gonic/ginx", "github.com/labstack/echo/v4"},
		"echoflow":         {module + "examples/flowqps"},
		"grpcflow":         {module + "nethttpflow"},
		"newflow":          {module + "core"},
		"examples/flowqps": {"example.com/other", module + "examples/gin"},
	} {
		for _, imp := range imps {
			if judge(pkg, imp, false) == "" {
				t.Errorf("%s may import %s", pkg, imp)
			}
		}
	}
}

// judge says what is wrong when pkg imports imp: "" if nothing is.
func judge(pkg, imp string, test bool) string {
	if first, _, _ := strings.Cut(imp, "/"); !strings.Contains(first, ".") {
		if pkg == "core" && !test {
			return forbidden[imp]
		}
		return ""
	}
	if imp == module+pkg {
		return "" // a package's own tests
	}
	top, _, _ := strings.Cut(pkg, "/")
	if may, ok := apart[top]; ok {
		for name, lib := range allowed {
			if imp == module+name || covers(lib, imp) {
				return ""
			}
		}
		if !covers(may, imp) {
			return "the library does not, and the table has no reason for it"
		}
		return ""
	}
	may, ok := allowed[pkg]
	if !ok {
		return "the table has no row for " + pkg + ": say there what it needs, and why"
	}
	if !covers(may, imp) && !(test && pkg != "core" && covers(inTests, imp)) {
		return "the table has no reason for it"
	}
	return ""
}

func covers(may map[string]string, imp string) bool {
	for p := range may {
		if imp == p || strings.HasPrefix(imp, p+"/") {
			return true
		}
	}
	return false
}

// imports has, by package and file, what the Go files of this module import.
// Folders that are modules of their own are left out.
func imports(t *testing.T) map[string]map[string][]string {
	found := map[string]map[string][]string{}
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil && file != ".." || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(file) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		file = strings.TrimPrefix(filepath.ToSlash(file), "../")
		pkg := path.Dir(file)
		if found[pkg] == nil {
			found[pkg] = map[string][]string{}
		}
		found[pkg][file] = nil
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			found[pkg][file] = append(found[pkg][file], imp)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
