package checkapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/grpclimit/penstockv1"
)

type method struct {
	name        string // as in the proto file
	path        string // of the URL
	needs       permission
	newRequest  func() proto.Message
	newResponse func() proto.Message
	call        func(context.Context, *Service, proto.Message) (proto.Message, error)
}

func define[Request, Response proto.Message](name, path string, needs permission, call func(*Service, context.Context, Request) (Response, error)) *method {
	return &method{
		name: name, path: path, needs: needs,
		newRequest: newMessage[Request], newResponse: newMessage[Response],
		call: func(ctx context.Context, s *Service, m proto.Message) (proto.Message, error) {
			return call(s, ctx, m.(Request))
		},
	}
}

func newMessage[Message proto.Message]() proto.Message {
	var none Message
	return none.ProtoReflect().New().Interface()
}

const batchPath = "/v1/check-batch"

var methods = []*method{
	define("Check", "/v1/check", caller, (*Service).Check),
	define("CheckBatch", batchPath, caller, (*Service).CheckBatch),
	define("Reserve", "/v1/reserve", caller, (*Service).Reserve),
	define("Settle", "/v1/settle", caller, (*Service).Settle),
	define("Acquire", "/v1/acquire", caller, (*Service).Acquire),
	define("Renew", "/v1/renew", caller, (*Service).Renew),
	define("Release", "/v1/release", caller, (*Service).Release),
	define("Peek", "/v1/peek", operator, (*Service).Peek),
	define("Reset", "/v1/reset", operator, (*Service).Reset),
	define("Explain", "/v1/explain", operator, (*Service).Explain),
}

// hasDecision reports whether a response has one decision. That of a batch has several.
func (m *method) hasDecision() bool {
	switch m.newResponse().(type) {
	case *penstockv1.CheckResponse, interface {
		GetDecision() *penstockv1.CheckResponse
	}:
		return true
	}
	return false
}

func decisionIn(m proto.Message) *penstockv1.CheckResponse {
	switch m := m.(type) {
	case *penstockv1.CheckResponse:
		return m
	case interface {
		GetDecision() *penstockv1.CheckResponse
	}:
		return m.GetDecision()
	}
	return nil
}

// seconds converts milliseconds to seconds and rounds up.
func seconds(ms int64) int64 {
	const msPerSecond = int64(time.Second / time.Millisecond)
	return ms/msPerSecond + min(ms%msPerSecond, 1)
}
