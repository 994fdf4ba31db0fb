package checkapi

import (
	"cmp"
	_ "embed"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/grpclimit/penstockv1"
)

// MaxBody is the largest body of a request over HTTP, in bytes.
const MaxBody = 1 << 20

var statuses = map[codes.Code]int{
	codes.InvalidArgument: http.StatusBadRequest, codes.Unauthenticated: http.StatusUnauthorized, codes.PermissionDenied: http.StatusForbidden,
	codes.NotFound: http.StatusNotFound, codes.FailedPrecondition: http.StatusConflict, codes.Unavailable: http.StatusServiceUnavailable,
	codes.DeadlineExceeded: http.StatusServiceUnavailable, codes.Canceled: http.StatusServiceUnavailable, codes.Internal: http.StatusInternalServerError,
}

// ServeHTTP serves calls in JSON. A decision has status 200. With the query status=429, a decision
// that does not allow the request has status 429, 403 (deny list) or 503 (failed closed). A path
// for which IsEndpoint is false gets 404. The http.Server must bound how long a body may take to
// arrive.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Cache-Control"], h["X-Content-Type-Options"] = noStore, noSniff
	at := slices.IndexFunc(methods, func(m *method) bool { return m.path == r.URL.Path })
	switch {
	case r.URL.Path == OpenAPIPath && r.Method == http.MethodGet:
		h["Content-Type"] = jsonType
		h.Set("Content-Length", strconv.Itoa(len(openAPI)))
		w.Write(openAPI)
		return
	case r.URL.Path == OpenAPIPath:
		h.Set("Allow", http.MethodGet)
		writeProblem(w, http.StatusMethodNotAllowed, failf(codes.InvalidArgument, "send a GET"))
		return
	case at < 0:
		writeProblem(w, http.StatusNotFound, failf(codes.NotFound, "there is no such path; docs/check-api.md lists the paths"))
		return
	case r.Method != http.MethodPost:
		h.Set("Allow", http.MethodPost)
		writeProblem(w, http.StatusMethodNotAllowed, failf(codes.InvalidArgument, "send a POST"))
		return
	}
	m := methods[at]
	if err := s.authorize(r, m.needs); err != nil {
		if asFailure(err).code == codes.Unauthenticated {
			h.Set("WWW-Authenticate", `Bearer realm="penstock"`)
		}
		s.options.AuthFailed(authFailureOf(r.Header["Authorization"], err))
		writeFailure(w, err)
		return
	}
	shouldSend429, err := readQuery(r.URL)
	if err == nil && shouldSend429 && !m.hasDecision() {
		err = invalid("the query", "status=429 has no effect, because the response of this call does not have exactly one decision; remove it, and read the response")
	}
	if err != nil {
		writeFailure(w, err)
		return
	}
	var held *heldMemory
	if isBatch := m.path == batchPath; isBatch || r.ContentLength < 0 || r.ContentLength > smallCall {
		held = &heldMemory{memory: s.options.Memory}
		defer held.release() // when the answer has been written
	}
	body, status, err := readBody(w, r, held)
	if err != nil {
		writeProblem(w, status, err)
		return
	}
	request := m.newRequest()
	if err := unmarshal(body, request); err != nil {
		writeFailure(w, err)
		return
	}
	if err := setRequestID(r.Header["Idempotency-Key"], request); err != nil {
		writeFailure(w, err)
		return
	}
	if batch, isBatch := request.(*penstockv1.CheckBatchRequest); isBatch {
		if err := s.takeForAnswers(batch, held); err != nil {
			writeFailure(w, err)
			return
		}
	}
	answer, err := m.call(r.Context(), s, request)
	if err != nil {
		writeFailure(w, err)
		return
	}
	code := http.StatusOK
	if d := decisionIn(answer); shouldSend429 && d != nil {
		code = statusFor(h, d)
	}
	text := append(marshal(make([]byte, 0, usualAnswer), answer.ProtoReflect()), '\n')
	h["Content-Type"] = jsonType
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(code)
	w.Write(text)
}

// The values of header fields that all responses share, so that no response allocates them. They
// are never changed.
var (
	noStore  = []string{"no-store"}
	noSniff  = []string{"nosniff"}
	jsonType = []string{mediaTypeJSON}
)

const mediaTypeJSON = "application/json"

// authorize checks that the caller may call a method. Browsers send the header Origin, so authorize
// refuses requests with Origin and without a token. Otherwise any web page in a browser on this
// machine could call a service that needs no token.
func (s *Service) authorize(r *http.Request, needs permission) error {
	tokens := r.Header["Authorization"]
	if len(tokens) == 0 && r.Header["Origin"] != nil {
		return errWebPage
	}
	return s.tokens.authorize(tokens, needs)
}

var errWebPage = failf(codes.PermissionDenied, "web pages may not call this without a token; call it from a program")

// readQuery reads the query of a call: status=429, or nothing.
func readQuery(u *url.URL) (shouldSend429 bool, err error) {
	if u.RawQuery == "" {
		return false, nil
	}
	if u.RawQuery == "status=429" {
		return true, nil
	}
	return false, invalid("the query", "it may only be status=429")
}

// usualAnswer is the capacity in bytes that a response has from the start: enough for a decision
// on two limits.
const usualAnswer = 512

// readBody reads the body of a call. If the body has more than smallCall bytes, held takes the
// memory for it. held is nil for a single call that states a length of at most smallCall. If
// readBody fails, it returns the status of the response.
func readBody(w http.ResponseWriter, r *http.Request, held *heldMemory) (body []byte, status int, err error) {
	types := r.Header["Content-Type"]
	switch {
	case len(types) != 1 || !isJSON(types[0]):
		return nil, http.StatusUnsupportedMediaType, failf(codes.InvalidArgument, "send JSON, with the header Content-Type: application/json")
	case r.Header["Content-Encoding"] != nil:
		return nil, http.StatusUnsupportedMediaType, failf(codes.InvalidArgument, "send the body without a Content-Encoding")
	}
	var from io.Reader = r.Body
	if held != nil {
		from = &meteredBody{Reader: http.MaxBytesReader(w, r.Body, MaxBody), held: held}
	}
	body, err = io.ReadAll(from)
	if errors.Is(err, errNoMemory) {
		return nil, http.StatusServiceUnavailable, err
	}
	if _, isLarge := errors.AsType[*http.MaxBytesError](err); isLarge {
		return nil, http.StatusRequestEntityTooLarge, failf(codes.InvalidArgument, "the body is larger than %d bytes; send a batch of fewer requests", MaxBody)
	}
	if err != nil {
		return nil, http.StatusBadRequest, failf(codes.InvalidArgument, "the body did not arrive as a whole")
	}
	return body, 0, nil
}

// isJSON reports whether a Content-Type is that of JSON in UTF-8.
func isJSON(contentType string) bool {
	if contentType == mediaTypeJSON { // nearly always
		return true
	}
	mediaType, parameters, _ := mime.ParseMediaType(contentType)
	charset, hasCharset := parameters["charset"]
	return mediaType == mediaTypeJSON && (!hasCharset || strings.EqualFold(charset, "utf-8"))
}

// setRequestID sets the request_id of a message from the values of the header Idempotency-Key. A
// value may have quotes, like a string of structured fields (RFC 9651).
func setRequestID(values []string, m proto.Message) error {
	if len(values) == 0 {
		return nil
	}
	const name = "the header Idempotency-Key"
	key := values[0]
	if n := len(key); n > 1 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	if len(values) > 1 || key == "" || strings.ContainsAny(key, `"\`) || !isVisible(key) {
		return invalid(name, "write one value of visible ASCII characters, without quotes or backslashes inside it")
	}
	var id *string
	switch m := m.(type) {
	case *penstockv1.CheckRequest:
		id = &m.RequestId
	case *penstockv1.CheckBatchRequest:
		id = &m.RequestId
	case *penstockv1.ReserveRequest:
		if m.Check == nil {
			return nil // Reserve itself refuses a request without check
		}
		id = &m.Check.RequestId
	case *penstockv1.AcquireRequest:
		return invalid(name, "write a holder into the body instead: a repeated call with the same holder takes no more slots")
	default:
		return nil // a repeat of this call is harmless, so it has no request_id
	}
	if *id != "" && *id != key {
		return conflict(name, "the request_id in the body has another value; send only one of them")
	}
	*id = key
	return nil
}

// statusFor returns the HTTP status for a decision and sets the rate limit headers.
func statusFor(h http.Header, d *penstockv1.CheckResponse) int {
	if len(d.Limits) > 0 {
		var policies, states []string
		for _, l := range d.Limits {
			policies = append(policies, `"`+l.Limit+`";q=`+strconv.FormatInt(min(l.Capacity, maxField), 10))
			state := `"` + l.Limit + `";r=` + strconv.FormatInt(min(l.Remaining, maxField), 10)
			if l.RetryAfterMs != never {
				until := cmp.Or(l.RetryAfterMs, l.ResetAfterMs) // RetryAfterMs is 0 if this limit did not deny
				state += ";t=" + strconv.FormatInt(seconds(until), 10)
			}
			states = append(states, state)
		}
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
		h.Set("RateLimit", strings.Join(states, ", "))
	}
	if d.Allowed {
		return http.StatusOK
	}
	if d.RetryAfterMs > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(d.RetryAfterMs), 10))
	}
	switch d.Outcome {
	case "failed_closed":
		return http.StatusServiceUnavailable
	case "refused":
		return http.StatusForbidden
	}
	return http.StatusTooManyRequests
}

// maxField is the largest integer of a structured field (RFC 9651).
const maxField = 999_999_999_999_999

func writeFailure(w http.ResponseWriter, err error) {
	f := asFailure(err)
	status := statuses[f.code]
	if f.isConflict {
		status = http.StatusConflict
	}
	writeProblem(w, status, err)
}

// writeProblem writes a problem document (RFC 9457).
func writeProblem(w http.ResponseWriter, status int, err error) {
	f := asFailure(err)
	status = cmp.Or(status, http.StatusInternalServerError)
	text := append([]byte(`{"type":"about:blank","title":`), appendString(nil, http.StatusText(status))...)
	text = append(strconv.AppendInt(append(text, `,"status":`...), int64(status), 10), `,"code":`...)
	text = append(appendString(text, codeNames[f.code]), `,"detail":`...)
	text = append(appendString(text, f.text), `,"may_be_charged":`...)
	text = append(strconv.AppendBool(text, f.mayBeCharged), "}\n"...)
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(text)))
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(seconds(inMS(f.retryAfter)), 10))
	}
	w.WriteHeader(status)
	w.Write(text)
}

// openAPI is generated by TestOpenAPI from the proto file, its comments and the bounds of this
// package; run make protos.
//
//go:embed openapi.json
var openAPI []byte

// OpenAPIPath is the path of the API's description. ServeHTTP serves it without a token.
const OpenAPIPath = "/v1/openapi.json"
