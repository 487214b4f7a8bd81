package echo5flow

import (
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/exactflow/exactflow/core"
	"github.com/exactflow/exactflow/nethttpflow"
)

// refused is the error of a refused request: a [core.Refusal] with the status and
// the problem document that an answer makes of it. Echo's error handlers write
// them, if nobody has.
type refused struct {
	core.Refusal
	sheet sheet
}

func refusal(a nethttpflow.Answer, p core.Permit) *refused {
	e := &refused{Refusal: p.Refusal()}
	a.Write(&e.sheet, new(http.Request), p)
	return e
}

func (e *refused) Unwrap() error { return e.Refusal }

// StatusCode makes it an [echo.HTTPStatusCoder].
func (e *refused) StatusCode() int { return e.sheet.status }

// ProblemError makes it an [echo.ProblemErrorer]. The violated policy, for which
// echo has no place, is left out.
func (e *refused) ProblemError() *echo.ProblemError {
	p := new(echo.ProblemError)
	json.Unmarshal(e.sheet.document, p) // it is well-formed
	return p
}

// MarshalJSON is what echo's default error handler asks for. It is the whole
// document.
func (e *refused) MarshalJSON() ([]byte, error) { return e.sheet.document, nil }

// write answers the request.
func (e *refused) write(c *echo.Context) {
	w := c.Response()
	w.Header().Del(echo.HeaderContentLength) // somebody's, of another body
	w.Header().Set(echo.HeaderContentType, echo.MIMEApplicationProblemJSON)
	w.WriteHeader(e.sheet.status)
	if c.Request().Method != http.MethodHead {
		w.Write(e.sheet.document) // an error is the client's going away
	}
}

// A sheet keeps what an answer writes.
type sheet struct {
	status   int
	document []byte
}

func (s *sheet) Header() http.Header    { return http.Header{} }
func (s *sheet) WriteHeader(status int) { s.status = status }

func (s *sheet) Write(b []byte) (int, error) {
	s.document = append(s.document, b...)
	return len(b), nil
}
