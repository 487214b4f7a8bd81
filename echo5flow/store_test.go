package echo5flow_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echo5flow"
	"github.com/exactflow/exactflow/nethttpflow"
)

// behind is a server with echo's own limiter over a store.
func behind(store middleware.RateLimiterStore, change ...func(*middleware.RateLimiterConfig)) *echo.Echo {
	c := middleware.RateLimiterConfig{Store: store}
	for _, f := range change {
		f(&c)
	}
	e := echo.New()
	e.Use(middleware.RateLimiterWithConfig(c))
	e.GET("/", ok)
	return e
}

// Volleys of a client that idles between them. Tokens that were saved up while it did
// pass beside those that come meanwhile, so that echo's store lets twice the limit
// pass within a second of fake time; here nothing is saved up.
func TestTheStoreIsExactWhereTokensAddUp(t *testing.T) {
	most := func(store middleware.RateLimiterStore) int {
		h := behind(store)
		var passed []time.Time
		most := 0
		for range 5 {
			time.Sleep(3 * time.Second)
			for range 100 {
				if ask(h, "GET", "/").StatusCode == http.StatusOK {
					passed = append(passed, time.Now())
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		for first, last := 0, 0; last < len(passed); last++ {
			for passed[last].Sub(passed[first]) >= time.Second {
				first++
			}
			most = max(most, last-first+1)
		}
		return most
	}
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, core.Rule{Name: "r", By: "ip", Limit: core.Rate{N: 20, Per: time.Second}})
		if n := most(echo5flow.NewStore(l, echo5flow.StoreOptions{})); n != 20 {
			t.Errorf("%d passed within a second, want 20", n)
		}
		if s := stat(t, l, "r"); s.Keys != 1 || s.Empty != 0 {
			t.Errorf("%d keys, %d asked without", s.Keys, s.Empty)
		}
		if n := most(middleware.NewRateLimiterMemoryStore(20)); n != 39 {
			t.Errorf("%d passed within a second of echo's store; if that is 20 now, the story is out of date", n)
		}
	})
}

// Clients are told apart by what the extractor says, under the key and the resource
// that the store has; and DenyHandler finds out why.
func TestTheStoreTellsRulesWhoAsks(t *testing.T) {
	l := limiter(t,
		core.Rule{Name: "users", On: "api", By: "user", Limit: core.Rate{N: 2, Per: time.Hour}},
		core.Rule{Name: "others", On: "other", By: "user", Limit: none})
	var refusal core.Refusal
	h := behind(echo5flow.NewStore(l, echo5flow.StoreOptions{By: "user", On: "api"}), func(c *middleware.RateLimiterConfig) {
		c.IdentifierExtractor = func(c *echo.Context) (string, error) { return c.QueryParam("user"), nil }
		deny := middleware.DefaultRateLimiterConfig.DenyHandler
		c.DenyHandler = func(c *echo.Context, user string, err error) error {
			if user != "a" || !errors.As(err, &refusal) {
				t.Errorf("user %q, error %v", user, err)
			}
			return deny(c, user, err)
		}
	})
	var got []string
	for _, user := range []string{"a", "a", "a", "b", "a", "b"} {
		got = append(got, user+strconv.Itoa(ask(h, "GET", "/?user="+user).StatusCode))
	}
	if got := strings.Join(got, " "); got != "a200 a200 a429 b200 a429 b200" {
		t.Error(got)
	}
	if refusal.Rule != "users" || refusal.Reason != core.ReasonRate || refusal.RetryAfter == 0 {
		t.Errorf("%+v", refusal)
	}
	if s := stat(t, l, "users"); s.Keys != 2 || s.Empty != 0 {
		t.Errorf("%d keys, %d without", s.Keys, s.Empty)
	}
}

// Nobody tells it that a request is over. So it is not made for rules that hold units until then,
// and admits nothing where one comes in later: a limit that silently is none would be
// worse. What it refuses so has spent nothing. A rule in shadow refuses nobody here either.
func TestTheStoreAdmitsNothingThatIsHeld(t *testing.T) {
	for name, limit := range map[string]core.Limit{
		"in flight":  core.InFlight{N: 1},
		"by outcome": core.Rate{N: 1, Per: time.Hour, Charge: core.ChargeFailed},
	} {
		rate := core.Rule{Name: "rate", Limit: core.Rate{N: 3, Per: time.Hour}}
		l := limiter(t, rate, core.Rule{Name: "held", Limit: limit, Shadow: true})
		made := echo5flow.NewStore(l, echo5flow.StoreOptions{})
		if _, err := made.Allow("192.0.2.7"); err != nil {
			t.Errorf("%s, in shadow: %v", name, err)
		}
		if err := l.Replace(rate, core.Rule{Name: "held", Limit: limit}); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if _, err := made.Allow("192.0.2.7"); err == nil || !strings.HasPrefix(err.Error(), "echo5flow: a rule holds units") {
				t.Errorf("%s: %v; want an error that tells that the rule is not for a Store", name, err)
			}
		}
		if q, ok := l.Peek(core.Request{}); !ok || q.Quota().Rule != "rate" || q.Quota().Remaining != 2 {
			t.Errorf("%s: %v, %+v; want all left but the one admitted in shadow", name, ok, q.Quota())
		}
		func() {
			defer func() {
				if told := fmt.Sprint(recover()); !strings.HasPrefix(told, `echo5flow: rule "held" holds units`) {
					t.Errorf("%s: made with such a rule: %s", name, told)
				}
			}()
			_ = echo5flow.NewStore(l, echo5flow.StoreOptions{})
		}()
	}
}

// echo shows a store the request. So it waits, knows the route, and sets headers.
func TestTheStoreSeesTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			core.Rule{Name: "queued", On: "GET /", Limit: core.Rate{N: 1, Per: time.Second}, Queue: core.Queue{Len: 9, Wait: time.Minute}},
			core.Rule{Name: "none", On: "GET /u/:id", Limit: core.Rate{N: 0, Per: time.Second}},
			core.Rule{Name: "two", On: "GET /two", Limit: core.Rate{N: 1, Per: time.Minute}})
		h := behind(echo5flow.NewStore(l, echo5flow.StoreOptions{Headers: nethttpflow.HeadersAlways, Legacy: nethttpflow.LegacyXDelta}))
		h.GET("/u/:id", ok)
		h.GET("/two", ok)
		for _, c := range []struct {
			path, rate, left, wait string
			status                 int
			took                   time.Duration
		}{
			{"/", `"queued";r=0;t=1`, "0", "", 200, 0},
			{"/", `"queued";r=0;t=1`, "0", "", 200, time.Second},
			{"/u/7", `"none";r=0`, "0", "", 429, 0},
			{"/two", `"two";r=0;t=60`, "0", "", 200, 0},
			{"/two", `"two";r=0;t=60`, "0", "60", 429, 0},
		} {
			begin := time.Now()
			res := ask(h, "GET", c.path)
			if took := time.Since(begin); res.StatusCode != c.status || took != c.took || res.Header.Get("RateLimit") != c.rate ||
				res.Header.Get("X-RateLimit-Remaining") != c.left || res.Header.Get("Retry-After") != c.wait {
				t.Errorf("%s: %s after %v, %v", c.path, res.Status, took, res.Header)
			}
		}

		gone, leave := context.WithCancel(t.Context())
		leave()
		if res := ask(h, "GET", "/two", func(r *http.Request) { *r = *r.WithContext(gone) }); res.StatusCode != 429 || res.Header.Get("RateLimit") != "" {
			t.Errorf("a client that has gone: %s, %v", res.Status, res.Header)
		}
	})
}

// Who asks it without a request is told at once.
func TestTheStoreWithoutARequestDoesNotWait(t *testing.T) {
	l := limiter(t, core.Rule{Name: "r", On: "mine", Limit: core.Rate{N: 1, Per: time.Hour}, Queue: core.Queue{Len: 9, Wait: 2 * time.Hour}})
	store := echo5flow.NewStore(l, echo5flow.StoreOptions{On: "mine"})
	if allowed, err := store.Allow("192.0.2.1"); !allowed || err != nil {
		t.Errorf("%v, %v", allowed, err)
	}
	if allowed, err := store.Allow("192.0.2.1"); allowed || !errors.Is(err, core.ErrRefused) {
		t.Errorf("%v, %v", allowed, err)
	}
}

func TestWrongStoresPanicWhenTheyAreMade(t *testing.T) {
	l := limiter(t)
	for want, build := range map[string]func(){
		"echo5flow: the limiter is nil": func() { echo5flow.NewStore(nil, echo5flow.StoreOptions{}) },
		`echo5flow: StoreOptions is By "resource", which is the request's own`: func() {
			echo5flow.NewStore(l, echo5flow.StoreOptions{By: "resource"})
		},
		`echo5flow: StoreOptions is By "a,b", which no rule can name; want no comma, and no space around it`: func() {
			echo5flow.NewStore(l, echo5flow.StoreOptions{By: "a,b"})
		},
		"echo5flow: Options.Headers is 4, which is none of the constants; want 0 to 3": func() {
			echo5flow.NewStore(l, echo5flow.StoreOptions{Headers: nethttpflow.HeadersNever + 1})
		},
		"echo5flow: Options.Legacy is 4, which is none of the constants; want 0 to 3": func() {
			echo5flow.NewStore(l, echo5flow.StoreOptions{Legacy: nethttpflow.LegacyDraft06 + 1})
		},
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := recover(); got != want {
					t.Fatalf("panicked with %v", got)
				}
			}()
			build()
		})
	}
}
