#!/usr/bin/env bash
# The rules of the house that a search can check: a sentence, a line that breaks
# it, the pattern, and where. A pattern must find its own bad line and nothing in
# the tree; so no rule can rot into one that finds nothing at all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

library=('core/*.go' '*flow/*.go' ':!*_test.go' ':!examples' ':!bench')
code=('*.go')
tests=('*_test.go')
all=(':!scripts/house.sh' ':!go.sum' ':!*/go.sum' ':!LICENSE')
rules=0
broken=0

# never SENTENCE BAD PATTERN WHERE...
never() {
	rules=$((rules + 1))
	if ! grep -qE "$3" <<<"$2"; then
		echo "This rule does not find what it forbids: $1"
		broken=$((broken + 1))
		return
	fi
	local found status=0
	found=$(git grep --untracked -nE "$3" -- "${@:4}") || status=$?
	if [ "$status" != 1 ]; then
		echo "$1"
		echo "$found"
		broken=$((broken + 1))
	fi
}

never 'Importing a package does nothing: there is no init.' \
	'func init() {' '^func init\(' "${code[@]}"
never 'The clock is not read when the program starts: in a test bubble that would be another clock.' \
	'var epoch = time.Now()' '^var .*time\.(Now|Since)\(' "${code[@]}"
never 'The library has no state outside its values.' \
	'var limiters sync.Map' '^var .*(sync|atomic)\.|^var .*\b(make|new)\(' "${library[@]}"
never 'The library starts no goroutine, so that nothing has to be closed.' \
	'	go l.sweep()' '^[[:space:]]*go (func|[A-Za-z_.]+\()' "${library[@]}"
never 'The library does not sleep, and has no timer that nobody stops.' \
	'	case <-time.After(wait):' 'time\.(Sleep|After|Tick)\(' "${library[@]}"
never 'The library speaks by its results: it prints and logs nothing, and ends no process.' \
	'	fmt.Println("refused")' '^[^/]*\b(fmt\.Print|fmt\.Fprint[a-z]*\(os\.|log\.|slog\.|println\(|os\.(Exit|Std))' "${library[@]}"
never 'A panic passes through with its own stack: nobody recovers it.' \
	'	if v := recover(); v != nil {' '\brecover\(\)' "${library[@]}"
never 'The context is the caller'\''s.' \
	'	ctx := context.Background()' 'context\.(Background|TODO)\(' "${library[@]}"
never 'The response writer is passed on as it is: a wrapper loses what it does not know.' \
	'	http.ResponseWriter' '^[[:space:]]*(http\.ResponseWriter|gin\.ResponseWriter)$' "${library[@]}"
never 'The library is the same on every system.' \
	'//go:build linux' '^//go:build|^// \+build' "${library[@]}"
never 'Memory is reached by the rules of the language; tests may measure it.' \
	'	"unsafe"' '^[[:space:]]*(import )?"unsafe"$|^//go:linkname' "${code[@]}" ':!*_test.go'
never 'The empty interface is called any.' \
	'func f(v interface{}) {' 'interface[ ]?\{\}' "${code[@]}"
never 'A name says what a thing is: not Get, Manager, Helper, Util or Impl.' \
	'type RuleManager struct {' '^(type|func) .*(Manager|Helper|Util|Impl)\b|^func (\([^)]*\) )?Get[A-Z]' "${library[@]}"
never 'A test that does not run proves nothing: none is skipped.' \
	'		t.Skip("slow")' '\b[tbf]\.Skip(f|Now)?\(|testing\.Short\(' "${tests[@]}"
never 'Where a check is excepted, the reason stands beside.' \
	'//lint:ignore U1000' '//[ ]?nolint|//lint:(file-)?ignore [A-Z0-9,]+[[:space:]]*$' "${code[@]}"
never 'What is left to do stands in the tracker, not in the code.' \
	'// TODO: later' '\b(TODO|FIXME|XXX|HACK)\b' "${all[@]}"
never 'Nothing knows the machine it was written on.' \
	'cd /home/me/exactflow' '(^|[^A-Za-z0-9_.$}])/(tmp|home|root|work)/' "${all[@]}"
never 'No line of the root go.mod is one that those who require it would not get.' \
	'replace example.com/a => ../a' '^(replace|exclude|tool|toolchain)\b' go.mod

echo "$rules rules, $broken broken"
[ "$broken" = 0 ]
