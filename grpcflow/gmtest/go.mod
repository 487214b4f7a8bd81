module github.com/exactflow/exactflow/grpcflow/gmtest

go 1.25.0

require (
	github.com/exactflow/exactflow v0.0.0
	github.com/grpc-ecosystem/go-grpc-middleware/v2 v2.3.4
	google.golang.org/grpc v1.81.1
)

require (
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171 // indirect
	google.golang.org/protobuf v1.36.11 // indirect
)

replace github.com/exactflow/exactflow => ../..
