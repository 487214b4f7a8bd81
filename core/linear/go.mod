module github.com/exactflow/exactflow/core/linear

go 1.25.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/exactflow/exactflow v0.0.0
	golang.org/x/time v0.15.0
)

replace github.com/exactflow/exactflow => ../..
