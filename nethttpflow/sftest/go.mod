module github.com/exactflow/exactflow/nethttpflow/sftest

go 1.25.0

require (
	github.com/dunglas/httpsfv v1.1.2
	github.com/exactflow/exactflow v0.0.0
)

replace github.com/exactflow/exactflow => ../..
