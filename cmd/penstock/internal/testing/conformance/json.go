package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

type jsonResponse struct {
	status      int
	contentType string
	body        string
	tree        any // the body, if it is JSON
}

type jsonClient struct {
	responder
	url    string
	client *http.Client
}

func newJSONClient(r responder) (responder, error) {
	s, ok := r.(*service)
	if !ok {
		return nil, fmt.Errorf("%T does not serve HTTP", r)
	}
	return jsonClient{responder: s, url: "http://" + s.http + "/json", client: &http.Client{Timeout: answerTimeout}}, nil
}

func (j jsonClient) respond(request *rls.RateLimitRequest) answer {
	// Some clients write hits_addend, others hitsAddend. So do requests here, with an even or an odd
	// number of descriptors.
	body, err := protojson.MarshalOptions{UseProtoNames: len(request.Descriptors)%2 == 0}.Marshal(request)
	if err != nil {
		return answer{err: err}
	}
	p, err := j.post(http.MethodPost, body)
	if err != nil {
		return answer{err: err}
	}
	a := answer{json: p}
	if p.tree != nil {
		a.response = new(rls.RateLimitResponse)
		a.err = protojson.Unmarshal([]byte(p.body), a.response)
	}
	return a.normalize()
}

func (j jsonClient) post(method string, body []byte) (*jsonResponse, error) {
	request, err := http.NewRequest(method, j.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := j.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	p := &jsonResponse{status: response.StatusCode, contentType: response.Header.Get("Content-Type"), body: string(text)}
	if p.contentType == "application/json" && json.Unmarshal(text, &p.tree) != nil {
		p.tree = nil
	}
	return p, nil
}

// differencesOfJSON returns the differences between responses of envoyproxy/ratelimit and of
// Penstock that the protobuf messages do not show, such as the HTTP status.
func differencesOfJSON(theirs, ours *jsonResponse) (fields []string) {
	if theirs == nil || ours == nil {
		return nil
	}
	if theirs.status != ours.status {
		fields = append(fields, "HTTP status")
	}
	if theirs.contentType != ours.contentType {
		fields = append(fields, "Content-Type")
	}
	if !reflect.DeepEqual(theirs.tree, ours.tree) {
		fields = append(fields, "JSON")
	}
	// Penstock's error texts begin with those of envoyproxy/ratelimit, and have more details.
	if theirs.tree == nil && ours.tree == nil && !strings.HasPrefix(ours.body, strings.TrimSpace(theirs.body)) {
		fields = append(fields, "body")
	}
	return fields
}

// compareJSON compares the responses to POST /json: first to random requests, then to bodies that
// are hard to parse.
func (p *program) compareJSON() error {
	c := &comparison{rightRules: exactRules, wrap: newJSONClient}
	if err := p.compare(c, p.penstockStarter("exact")); err != nil {
		return err
	}
	return withConfigs(bodiesConfig, func(conf *startConfig) error {
		left, right, stop, err := startPair(conf, launchRedis, p.oracle.start, p.penstockStarter("exact"))
		if err != nil {
			return err
		}
		defer stop()
		return compareBodies(left, right)
	})
}

// bodiesConfig has windows of a year, so that no window ends during the comparison.
const bodiesConfig = `domain: d
descriptors:
- key: k
  rate_limit: {unit: year, requests_per_unit: 3}
- key: full
  rate_limit: {unit: year, requests_per_unit: 0}
`

// bodies are request bodies that are hard to parse.
var bodies = []string{
	``, ` `, `{`, `[]`, `null`, `"x"`, `{}`, `{"domain":""}`, `{"domain":"d"}`, `{"domain":"d","descriptors":[]}`, `{"domain":"d","descriptors":null}`,
	`{"domain":"d","descriptors":[{}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":""}]}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"full"}]}]}`,
	`{"domain":"other","descriptors":[{"entries":[{"key":"k"}]}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]}],"hitsAddend":2}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"a"}]}],"hits_addend":2}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"b"}]}],"hitsAddend":"2"}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"b"}]}],"hitsAddend":2.0}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"b"}]}],"hitsAddend":1e0}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hitsAddend":1.5}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hitsAddend":-1}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"hitsAddend":4294967296}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"c"}],"hitsAddend":"0"}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"c"}],"hitsAddend":4}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"c"}],"hits_addend":"1"}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"c"}],"hitsAddend":{"value":1}}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"x"}],"limit":{"requestsPerUnit":1,"unit":"HOUR"}}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"y"}],"limit":{"requests_per_unit":1,"unit":6}}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"y"}],"limit":{"requests_per_unit":1,"unit":"hour"}}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"y"}],"limit":{"requests_per_unit":1,"unit":"DECADE"}}]}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}],"unknown":1}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k","other":"x"}]}]}`, `{"Domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}`,
	`{"domain":"d","domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]} trailing`, `{"domain":"d","descriptors":[{"entries":[{"key":"k"}]}]}{}`,
	`{"domain":5,"descriptors":[{"entries":[{"key":"k"}]}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":5}]}]}`, `{"domain":"d","descriptors":{"entries":[{"key":"k"}]}}`,
	`{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"\u00e9\ud83d\ude00"}]}]}`, `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"\ud83d"}]}]}`,
	"{\"domain\":\"d\",\"descriptors\":[{\"entries\":[{\"key\":\"k\",\"value\":\"\xff\"}]}]}", `{'domain':'d'}`, `{"domain":"d",}`, "\ufeff{}", `{"domain":null,"descriptors":[{"entries":[{"key":"k"}]}]}`,
	`{"domain":"d","descriptors":[null]}`, `{"domain":"d","descriptors":[{"entries":[null]}]}`, `{"domain":"d","descriptors":[{"entries":null,"limit":null,"hitsAddend":null}]}`,
	`{"domain":"d","descriptors":[` + strings.Repeat(`[`, 20000) + strings.Repeat(`]`, 20000) + `]}`, // deeper than parsers allow
}

// compareBodies sends bodies to both services and compares the responses. left is
// envoyproxy/ratelimit, and right is Penstock.
func compareBodies(left, right responder) error {
	leftClient, err := newJSONClient(left)
	if err != nil {
		return err
	}
	rightClient, err := newJSONClient(right)
	if err != nil {
		return err
	}
	var failed error
	methods := []string{http.MethodPost, http.MethodGet, http.MethodPut}
	for _, method := range methods {
		for _, body := range bodies {
			theirs, err := leftClient.(jsonClient).post(method, []byte(body))
			if err != nil {
				return err
			}
			ours, err := rightClient.(jsonClient).post(method, []byte(body))
			if err != nil {
				return err
			}
			if fields := differencesOfJSON(theirs, ours); len(fields) > 0 {
				failed = errors.Join(failed, fmt.Errorf("%s /json with the body %.200q: the fields %v differ: envoyproxy/ratelimit returned %d %q, and penstock %d %q",
					method, body, fields, theirs.status, theirs.body, ours.status, ours.body))
			}
		}
	}
	if failed == nil {
		fmt.Printf("%10d  requests with equal responses: each body by %s\n", len(methods)*len(bodies), strings.Join(methods, ", "))
	}
	return failed
}
