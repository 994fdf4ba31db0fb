package checkapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/grpclimit/penstockv1"
)

// fields returns a JSON object of n fields. The format has the verb %d for the number of a field.
func fields(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return "{" + strings.Join(all, ",") + "}"
}

// Each bound accepts the largest value, and refuses the next one.
func TestBoundsOfRequestsAreExact(t *testing.T) {
	s := newService(t)
	id := s.reserve(`{"check":{"rule":"search","key":"user:1"}}`)
	// wide returns a text of n characters of two bytes.
	wide := func(n int) string { return strings.Repeat("é", n) }
	ascii := func(n int) string { return strings.Repeat("a", n) }
	attribute := func(format string, values ...any) string {
		return `{"attributes":{` + fmt.Sprintf(format, values...) + `}}`
	}
	callerLimits := func(limits string) string { return `{"key":"a","limits":[` + limits + `]}` }
	check := func(more string) string { return `{"rule":"search","key":"user:2"` + more + `}` }
	// headersOf returns 32 headers, which together have the given number of bytes.
	headersOf := func(bytes int) string {
		all := make([]string, 32)
		for i := range all {
			size := bytes / 32
			if i == 0 {
				size += bytes % 32
			}
			all[i] = fmt.Sprintf(`"h%02d":"%s"`, i, ascii(size-3))
		}
		return attribute(`"headers":{%s}`, strings.Join(all, ","))
	}
	for name, c := range map[string]struct {
		path              string // "": /v1/peek
		accepted, refused string
		want              string // a part of the error
	}{
		"method":            {accepted: attribute(`"method":"%s"`, ascii(32)), refused: attribute(`"method":"%s"`, ascii(33)), want: "attributes.method: it is malformed"},
		"host":              {accepted: attribute(`"host":"%s"`, ascii(300)), refused: attribute(`"host":"%s"`, ascii(301)), want: "attributes.host: it is malformed"},
		"path":              {accepted: attribute(`"path":"/%s"`, ascii(8191)), refused: attribute(`"path":"/%s"`, ascii(8192)), want: "attributes.path: write what"},
		"query":             {accepted: attribute(`"query":"%s"`, ascii(8192)), refused: attribute(`"query":"%s"`, ascii(8193)), want: "attributes.query: write what"},
		"headers":           {accepted: attribute(`"headers":%s`, fields(128, `"a%d":"b"`)), refused: attribute(`"headers":%s`, fields(129, `"a%d":"b"`)), want: "attributes.headers: there are 129"},
		"fields of a map":   {refused: attribute(`"headers":%s`, fields(1000, `"a%d":"b"`)), want: "attributes.headers: there are 1000"},
		"too many fields":   {refused: attribute(`"headers":%s`, fields(1001, `"a%d":"b"`)), want: "attributes.headers: it has more than 1000 fields"},
		"header name":       {accepted: attribute(`"headers":{"%s":"b"}`, ascii(128)), refused: attribute(`"headers":{"%s":"b"}`, ascii(129)), want: "a name is malformed"},
		"header value":      {accepted: attribute(`"headers":{"a":"%s"}`, wide(8192)), refused: attribute(`"headers":{"a":"%s"}`, wide(8193)), want: "the value of A is malformed"},
		"all headers":       {accepted: headersOf(256 << 10), refused: headersOf(256<<10 + 1), want: "together they have 262145 bytes"},
		"descriptors":       {accepted: attribute(`"descriptors":%s`, fields(64, `"a%d":"b"`)), refused: attribute(`"descriptors":%s`, fields(65, `"a%d":"b"`)), want: "attributes.descriptors: there are 65"},
		"descriptor name":   {accepted: attribute(`"descriptors":{"%s":"b"}`, wide(128)), refused: attribute(`"descriptors":{"%s":"b"}`, wide(129)), want: "names have 1 to 128"},
		"descriptor value":  {accepted: attribute(`"descriptors":{"a":"%s"}`, wide(1024)), refused: attribute(`"descriptors":{"a":"%s"}`, wide(1025)), want: "values at most 1024"},
		"body size":         {accepted: attribute(`"body_size":0`), refused: attribute(`"body_size":-1`), want: "attributes.body_size: it must not be negative"},
		"key":               {accepted: `{"key":"` + wide(1024) + `","limits":[{"rate":"1/s"}]}`, refused: `{"key":"` + wide(1025) + `","limits":[{"rate":"1/s"}]}`, want: "key: it is longer than 1024"},
		"cost":              {accepted: check(`,"cost":2251799813685247`), refused: check(`,"cost":2251799813685249`), want: "cost: write 0 to"},
		"no cost":           {accepted: check(`,"cost":0`), refused: check(`,"cost":-1`), want: "cost: write 0 to"},
		"request_id":        {path: "/v1/check", accepted: check(`,"request_id":"` + wide(128) + `"`), refused: check(`,"request_id":"` + wide(129) + `"`), want: "request_id: it is longer than 128"},
		"limits":            {accepted: callerLimits(rates(16)), refused: callerLimits(rates(17)), want: "limits: there are 17"},
		"rate":              {accepted: callerLimits(`{"rate":"1/s` + strings.Repeat(" ", 61) + `"}`), refused: callerLimits(`{"rate":"1/s` + strings.Repeat(" ", 62) + `"}`), want: "limits[0].rate: it is longer than 64 bytes"},
		"burst":             {accepted: callerLimits(`{"rate":"1000000/s","burst":1000000000000}`), refused: callerLimits(`{"rate":"1000000/s","burst":1000000000001}`), want: "limits[0].burst: write 1 to"},
		"equal bursts":      {accepted: callerLimits(`{"rate":"1/s, burst 3","burst":3}`), refused: callerLimits(`{"rate":"1/s, burst 3","burst":4}`), want: "states another burst"},
		"in_flight":         {accepted: callerLimits(`{"in_flight":10000}`), refused: callerLimits(`{"in_flight":10001}`), want: "limits[0].in_flight: write 1 to 10000"},
		"negative slots":    {accepted: callerLimits(`{"in_flight":1}`), refused: callerLimits(`{"in_flight":-1}`), want: "limits[0].in_flight: write 1 to 10000"},
		"slots and burst":   {accepted: callerLimits(`{"in_flight":1,"ttl_ms":1000}`), refused: callerLimits(`{"in_flight":1,"burst":1}`), want: "limits[0]: a limit with in_flight has no burst"},
		"slots, algorithm":  {accepted: callerLimits(`{"in_flight":1,"ttl_ms":86400000}`), refused: callerLimits(`{"in_flight":1,"algorithm":"x"}`), want: "limits[0]: a limit with in_flight has no burst"},
		"short ttl":         {accepted: callerLimits(`{"in_flight":1,"ttl_ms":1000}`), refused: callerLimits(`{"in_flight":1,"ttl_ms":999}`), want: "limits[0].ttl_ms: write 1000 to 86400000"},
		"long ttl":          {accepted: callerLimits(`{"in_flight":1,"ttl_ms":86400000}`), refused: callerLimits(`{"in_flight":1,"ttl_ms":86400001}`), want: "limits[0].ttl_ms: write 1000 to 86400000"},
		"entries":           {accepted: callerLimits(`{"rate":"10000/d","algorithm":"sliding-log"}`), refused: callerLimits(`{"rate":"10001/d","algorithm":"sliding-log"}`), want: "limits[0]: it keeps an entry"},
		"burst of a rate":   {accepted: callerLimits(`{"rate":"1/s","burst":31622400}`), refused: callerLimits(`{"rate":"1/s","burst":31622401}`), want: "limits[0]: a burst of 31622401 takes longer than 366 days"},
		"period":            {accepted: callerLimits(`{"rate":"1 per 366d"}`), refused: callerLimits(`{"rate":"1 per 31622401s"}`), want: "limits[0].rate: the period is 8784h0m1s; the longest"},
		"exact rates":       {accepted: callerLimits(`{"rate":"71 per 365d"}`), refused: callerLimits(`{"rate":"7919 per 365d"}`), want: "burst 7919 (the default is the count) is too large"},
		"short reservation": {path: "/v1/reserve", accepted: `{"check":` + check("") + `,"ttl_ms":1000}`, refused: `{"check":` + check("") + `,"ttl_ms":999}`, want: "ttl_ms: write 1000 to 86400000"},
		"long reservation":  {path: "/v1/reserve", accepted: `{"check":` + check("") + `,"ttl_ms":86400000}`, refused: `{"check":` + check("") + `,"ttl_ms":86400001}`, want: "ttl_ms: write 1000 to 86400000"},
		"holder":            {path: "/v1/acquire", accepted: `{"check":{"rule":"jobs","key":"user:2"},"holder":"` + wide(128) + `"}`, refused: `{"check":{"rule":"jobs","key":"user:2"},"holder":"` + wide(129) + `"}`, want: "holder: it is longer than 128"},
		"slots":             {path: "/v1/acquire", accepted: `{"check":{"rule":"jobs","key":"user:3","cost":1}}`, refused: `{"check":{"rule":"jobs","key":"user:3","cost":0}}`, want: "check.cost: the cost is the number of slots"},
		"least actual":      {path: "/v1/settle", accepted: `{"id":"` + id + `","actual":0}`, refused: `{"id":"` + id + `","actual":-1}`, want: "actual: write 0 to"},
		"largest actual":    {path: "/v1/settle", accepted: `{"id":"` + id + `","actual":2251799813685247}`, refused: `{"id":"` + id + `","actual":2251799813685249}`, want: "actual: write 0 to"},
		"least status":      {path: "/v1/settle", accepted: `{"id":"` + id + `","status":100}`, refused: `{"id":"` + id + `","status":99}`, want: "status: write the status"},
		"largest status":    {path: "/v1/settle", accepted: `{"id":"` + id + `","status":599}`, refused: `{"id":"` + id + `","status":600}`, want: "status: write the status"},
		"32 bits":           {path: "/v1/settle", refused: `{"id":"` + id + `","status":4294967497}`, want: "status: it is out of range"}, // 2^32 + 201
		"53 bits":           {path: "/v1/settle", refused: `{"id":"` + id + `","actual":9007199254740991}`, want: "actual: write 0 to"},
		"54 bits":           {path: "/v1/settle", refused: `{"id":"` + id + `","actual":9007199254740992}`, want: "actual: it is out of range"},
		"-53 bits":          {path: "/v1/settle", refused: `{"id":"` + id + `","actual":-9007199254740991}`, want: "actual: write 0 to"},
		"-54 bits":          {path: "/v1/settle", refused: `{"id":"` + id + `","actual":-9007199254740992}`, want: "actual: it is out of range"},
		"id":                {path: "/v1/settle", refused: `{"id":"` + ascii(768<<10) + `","actual":0}`, want: "id: it is"},
		"long id":           {path: "/v1/settle", refused: `{"id":"` + ascii(768<<10+1) + `","actual":0}`, want: "id: it has 786433 bytes, and not 1 to 786432"},
		"checks":            {path: "/v1/check-batch", accepted: `{"checks":[` + strings.Repeat(check("")+",", 999) + check("") + `]}`, refused: `{"checks":[` + strings.Repeat(check("")+",", 1000) + check("") + `]}`, want: "checks: it has more than 1000"},
		"id of a batch":     {path: "/v1/check-batch", accepted: `{"all_or_nothing":true,"checks":[` + check("") + `],"request_id":"` + wide(128) + `"}`, refused: `{"checks":[` + check("") + `],"request_id":"` + wide(129) + `"}`, want: "request_id: it is longer than 128"},
		"charges together":  {path: "/v1/check-batch", accepted: together(32), refused: together(33), want: "checks: together they have 66 charges"},
		"checks together":   {path: "/v1/check-batch", accepted: `{"all_or_nothing":true,"checks":[` + check("") + `]}`, refused: `{"all_or_nothing":true,"checks":[` + strings.Repeat(check("")+",", 64) + check("") + `]}`, want: "checks: there are 65"},
		"body":              {path: "/v1/check", accepted: `{"rule":"search","key":"user:2"}` + strings.Repeat(" ", 1<<20-32), refused: `{"rule":"search","key":"user:2"}` + strings.Repeat(" ", 1<<20-31), want: "the body is larger than 1048576 bytes"},
	} {
		path := c.path
		if path == "" {
			path = "/v1/peek"
		}
		if w := s.send(operatorToken, path, c.accepted); c.accepted != "" && w.Code != 200 {
			t.Errorf("%s: %.200s: %d %s; want 200", name, c.accepted, w.Code, w.Body)
		}
		if w := s.send(operatorToken, path, c.refused); w.Code < 400 || w.Code > 413 || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %.200s: %d %.300s; want an error with %q", name, c.refused, w.Code, w.Body, c.want)
		}
	}
}

// rates returns n limits with different names.
func rates(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"name":"l%d","rate":"9/s"}`, i)
	}
	return strings.Join(all, ",")
}

// together returns a batch of n checks, of two charges each.
func together(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`{"rule":"search","key":"user:together-%d"}`, i)
	}
	return `{"all_or_nothing":true,"checks":[` + strings.Join(all, ",") + `]}`
}

// Over gRPC, no bound of JSON protects CheckBatch.
func TestBatchesHaveABoundWithoutJSON(t *testing.T) {
	s := newService(t)
	for n, isAccepted := range map[int]bool{0: false, 1: true, 1000: true, 1001: false} {
		r := &penstockv1.CheckBatchRequest{}
		for range n {
			r.Checks = append(r.Checks, &penstockv1.CheckRequest{Rule: "search", Key: "user:1"})
		}
		if _, err := s.CheckBatch(context.Background(), r); (err == nil) != isAccepted {
			t.Errorf("a batch of %d requests: %v; want it accepted: %t", n, err, isAccepted)
		}
	}
}

// A query has the visible characters of ASCII. A header also has spaces, tabs and other characters.
func TestCharactersOfAttributes(t *testing.T) {
	s := newService(t)
	for c := rune(0); c <= 0xa0; c++ {
		text, err := json.Marshal("a" + string(c) + "b")
		if err != nil {
			t.Fatal(err)
		}
		isVisible := c > ' ' && c <= '~'
		isInHeaders := c >= ' ' && c != 0x7f || c == '\t'
		for field, isAllowed := range map[string]bool{
			`{"attributes":{"query":%s}}`:             isVisible,
			`{"attributes":{"headers":{"X-A":%s}}}`:   isInHeaders,
			`{"attributes":{"descriptors":{"d":%s}}}`: true,
		} {
			body := fmt.Sprintf(field, text)
			if w := s.send(operatorToken, "/v1/peek", body); (w.Code == 200) != isAllowed {
				t.Errorf("%s: %d %s; want it accepted: %t", body, w.Code, w.Body, isAllowed)
			}
		}
		if !isVisible {
			body := fmt.Sprintf(`{"attributes":{"path":"/%s}}`, text[1:])
			if w := s.send(operatorToken, "/v1/peek", body); w.Code != 400 {
				t.Errorf("%s: %d %s; want 400", body, w.Code, w.Body)
			}
		}
	}
}
