module github.com/exactflow/exactflow/nethttpflow/interop

go 1.25.0

require (
	connectrpc.com/connect v1.16.2
	github.com/exactflow/exactflow v0.0.0
	github.com/go-chi/chi/v5 v5.2.0
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260226221140-a57be14db171
	google.golang.org/grpc v1.81.1
	google.golang.org/protobuf v1.36.11
)

require (
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)

replace github.com/exactflow/exactflow => ../..
