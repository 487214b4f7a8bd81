package echoflow_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/echoflow"
)

// Logins: five wrong passwords for an account in 15 minutes, and any number of right
// ones.
func ExampleOptions_carry() {
	limiter, err := core.New(core.Rule{
		Name: "wrong-passwords", On: "POST /login", By: "account",
		Limit: core.Rate{N: 5, Per: 15 * time.Minute, Charge: core.ChargeFailed},
	})
	if err != nil {
		log.Fatal(err)
	}
	account := func(c echo.Context) string {
		name, _, _ := c.Request().BasicAuth()
		return name
	}
	limited := echoflow.Middleware(limiter, echoflow.Options{
		Keys:  []echoflow.Key{{By: "account", Of: account}},
		Carry: true,
	})

	e := echo.New()
	e.POST("/login", func(c echo.Context) error {
		if _, password, _ := c.Request().BasicAuth(); password != "swordfish" {
			core.PermitFrom(c.Request().Context()).Fail()
			return c.NoContent(http.StatusUnauthorized)
		}
		return c.NoContent(http.StatusOK)
	}, limited)

	login := func(password string) {
		r := httptest.NewRequest("POST", "/login", nil)
		r.SetBasicAuth("ann", password)
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		fmt.Println(w.Code, password)
		if policy := w.Header().Get("RateLimit-Policy"); policy != "" {
			fmt.Println("RateLimit-Policy:", policy)
		}
	}
	for range 3 {
		login("swordfish")
	}
	for i := range 6 {
		login(fmt.Sprint("guess-", i+1))
	}
	// Output:
	// 200 swordfish
	// 200 swordfish
	// 200 swordfish
	// 401 guess-1
	// 401 guess-2
	// 401 guess-3
	// 401 guess-4
	// 401 guess-5
	// 429 guess-6
	// RateLimit-Policy: "wrong-passwords";q=5;w=900
}
