package sftest

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/exactflow/exactflow/nethttpflow"
)

// Whatever a server writes into RateLimit, RetryAfter reads what a parser of all of
// RFC 9651 would, and believes nothing of what that rejects.
func FuzzRetryAfterReadsRateLimitAsAStrictParserDoes(f *testing.F) {
	for _, s := range []string{
		`"a";r=0;t=7`, `"a";r=1;t=7, "b";r=0;t=5,"c";r=0`, "\"a\";r=0;t=7\n\"b\";r=0;t=9", "\"a\";r=0;t=7\n",
		`  "a"; r=0;  t=7	,	 "b";r=3  `, `"a, \"b\";r=1\\";r=0;t=7`, `"a";r=3;r=0;t=1;t=7`, `"a";r=x;r=0;t;t=7`,
		`"a";r=-0;t=-0`, `"a";r=0;t=7;pk=:QQ==:;x=1.5;y=-2.125;z;b=?0;on=@17;d=%"gr%c3%bc%c3%9fe";*k=*to/k:en;s="r=9"`,
		"", `"a";r=0;t=7,`, `,"a"`, `"a";r=0;t=7 "b"`, `"a";r=0 ;t=7`, `"a";r= 0`, `a;r=0;t=7`, `("a");r=0;t=7`, `("a" b;c=1);r=0`,
		`limit=10, remaining=0`, `"a";r=0;t=7.0`, `"a";r=0;t=999999999999999`, `"a";r=0;t=1000000000000000`, `"a";r=0;t=7;x=123456789012.123`,
		`"a";r=0;t=7;x=1234567890123.1`, `"a";r=0;t=7;x=1.2345`, `"a";r=0;t=7;x=1.`, `"a";r=0;t=7;x=-`, `"a";r=0;t=7;x=:QQ:`, `"a";r=0;t=7;x=:Q===:`,
		`"a";r=0;t=7;x=@1.5`, `"a";r=0;t=7;x=@-1`, `"a";r=0;t=7;x=%"%C3%BC"`, `"a";r=0;t=7;x=%"%c3"`, `"a";r=0;t=7;x=?1;y=?2`, "\"\x7f\";r=0;t=7", `"a\n";r=0;t=7`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		lines := strings.Split(s, "\n")
		want, wantOK := oracle(lines)
		got, ok := nethttpflow.RetryAfter(&http.Response{Header: http.Header{"Ratelimit": lines}})
		if got != want || ok != wantOK {
			t.Errorf("%q: %v, %v; want %v, %v", lines, got, ok, want, wantOK)
		}
	})
}

func oracle(lines []string) (wait time.Duration, ok bool) {
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return 0, false
	}
	for _, member := range list {
		item, isItem := member.(httpsfv.Item)
		if !isItem {
			return 0, false
		}
		if _, isString := item.Value.(string); !isString {
			return 0, false
		}
		value, _ := item.Params.Get("r")
		r, isInteger := value.(int64)
		if !isInteger || r < 0 {
			return 0, false
		}
		value, has := item.Params.Get("t")
		t, isInteger := value.(int64)
		if has && (!isInteger || t < 0) {
			return 0, false
		}
		if r == 0 && has {
			wait, ok = max(wait, time.Duration(min(t, 9_223_372_036))*time.Second), true
		}
	}
	return wait, ok
}
