package grpcflow

import (
	"errors"
	"time"

	"github.com/exactflow/exactflow/core"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// RetryAfter is how long it is, from when err was made, until it is worth asking
// again, for callers: what a [core.Refusal] knows or, of any server, the RetryInfo
// in the details of its status, wherever err wraps them. It is false if err tells
// no such time, as for a slot that is free when somebody is done, or is nil.
func RetryAfter(err error) (time.Duration, bool) {
	var r core.Refusal
	if errors.As(err, &r) {
		return r.RetryAfter, r.Known
	}
	st, ok := status.FromError(err)
	if !ok {
		return 0, false
	}
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok && info.RetryDelay.CheckValid() == nil {
			return max(info.RetryDelay.AsDuration(), 0), true
		}
	}
	return 0, false
}
