module github.com/exactflow/exactflow

go 1.25.0
