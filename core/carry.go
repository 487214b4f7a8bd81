package core

import "context"

// carried is the key of a permit in a context.
type carried struct{}

// WithPermit is ctx with p, for [PermitFrom]. [Limiter.Do] does it, and adapters where
// their Options say so, for who has more to say than that it returns.
func WithPermit(ctx context.Context, p Permit) context.Context {
	return context.WithValue(ctx, carried{}, p)
}

// PermitFrom is the permit that ctx carries: where limiters stand behind each other,
// that of the innermost. Without one it is the zero Permit, which is harmless.
func PermitFrom(ctx context.Context) Permit {
	p, _ := ctx.Value(carried{}).(Permit)
	return p
}
