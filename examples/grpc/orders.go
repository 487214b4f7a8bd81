package main

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// This file stands for what protoc makes of a service
//
//	service Orders {
//	  rpc Find(google.protobuf.StringValue) returns (google.protobuf.StringValue);
//	  rpc Export(google.protobuf.StringValue) returns (google.protobuf.StringValue);
//	}
//
// in package shop: a service of your own comes with its generated code.

type Text = wrapperspb.StringValue

type OrdersServer interface {
	Find(context.Context, *Text) (*Text, error)
	Export(context.Context, *Text) (*Text, error)
}

func RegisterOrdersServer(s grpc.ServiceRegistrar, orders OrdersServer) {
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "shop.Orders",
		HandlerType: (*OrdersServer)(nil),
		Methods:     []grpc.MethodDesc{method("Find", OrdersServer.Find), method("Export", OrdersServer.Export)},
	}, orders)
}

func method(name string, call func(OrdersServer, context.Context, *Text) (*Text, error)) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := new(Text)
			if err := decode(in); err != nil {
				return nil, err
			}
			handler := func(ctx context.Context, in any) (any, error) {
				return call(srv.(OrdersServer), ctx, in.(*Text))
			}
			if interceptor == nil {
				return handler(ctx, in)
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/shop.Orders/" + name}, handler)
		},
	}
}
