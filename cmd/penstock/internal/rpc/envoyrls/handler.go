package envoyrls

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// HandlerOptions configure NewHandler. The zero value is useful.
type HandlerOptions struct {
	// IsHealthy tells /healthcheck whether the service is healthy.
	IsHealthy func() bool

	// MaxBody is the largest body of /json, in bytes.
	MaxBody int64
}

const (
	pathJSON   = "/json"
	pathHealth = "/healthcheck"
	pathConfig = "/rlconfig"
)

// IsEndpoint reports whether NewHandler serves a path.
func IsEndpoint(path string) bool {
	return path == pathJSON || path == pathHealth || path == pathConfig
}

// NewHandler serves the HTTP endpoints of envoyproxy/ratelimit:
//
//   - /json decides a RateLimitRequest in proto3 JSON, with any method. The status is 200 if the
//     overall code is OK, and 429 if it is OVER_LIMIT. Errors have status 400, 413 or 500.
//   - /healthcheck returns 200, or 500 if the service is not healthy.
//   - /rlconfig lists the limits.
func NewHandler(e *Engine, o HandlerOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(pathJSON, func(w http.ResponseWriter, r *http.Request) { e.serveJSON(w, r, o.MaxBody) })
	mux.HandleFunc(pathHealth, func(w http.ResponseWriter, _ *http.Request) {
		if !o.IsHealthy() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		io.WriteString(w, "OK")
	})
	mux.HandleFunc("GET "+pathConfig, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if c := e.Config(); c != nil {
			io.WriteString(w, c.String())
		}
	})
	return mux
}

func (e *Engine) serveJSON(w http.ResponseWriter, r *http.Request, maxBody int64) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, isTooLarge := errors.AsType[*http.MaxBytesError](err); isTooLarge {
		http.Error(w, "the body is too large", http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "Bad Request: the body ended early", http.StatusBadRequest)
		return
	}
	var m rlsv3.RateLimitRequest
	if err := protojson.Unmarshal(body, &m); err != nil {
		http.Error(w, "Bad Request: the body is not a RateLimitRequest in JSON: "+mistakeOf(err), http.StatusBadRequest)
		return
	}
	answer, text, err := e.decideJSON(r.Context(), &m)
	switch {
	case status.Code(err) == codes.Internal:
		http.Error(w, "the response cannot be encoded as JSON: a name in the configuration is not UTF-8", http.StatusInternalServerError)
		return
	case err != nil:
		http.Error(w, "Bad Request: "+status.Convert(err).Message(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	w.Write(text)
}

// decideJSON decides a message. It returns the response, also in JSON. An error is a gRPC status.
func (e *Engine) decideJSON(ctx context.Context, m *rlsv3.RateLimitRequest) (answer *rlsv3.RateLimitResponse, text []byte, err error) {
	request, err := proto.Marshal(m)
	if err != nil {
		return nil, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	response, err := e.DecideMessage(ctx, request)
	if err != nil {
		return nil, nil, err
	}
	answer = new(rlsv3.RateLimitResponse)
	if err = proto.Unmarshal(response, answer); err == nil {
		text, err = protojson.Marshal(answer)
	}
	if err != nil {
		return nil, nil, status.Error(codes.Internal, err.Error())
	}
	return answer, text, nil
}

// maxMistakeBytes is how many bytes of a parse error are returned. The error repeats a part of the
// body, so it can be long.
const maxMistakeBytes = 200

// mistakeOf returns the text of a protojson error, such as: (line 1:19): unknown field "foo". White
// space is replaced, because protojson varies it between builds.
func mistakeOf(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	text = strings.TrimPrefix(text, "proto: ")
	return strings.ToValidUTF8(text[:min(len(text), maxMistakeBytes)], "")
}
