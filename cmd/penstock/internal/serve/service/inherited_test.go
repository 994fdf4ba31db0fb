package service

import (
	"errors"
	"net"
	"net/http"
	"testing"

	"github.com/penstock/penstock/cmd/penstock/internal/serve/settings"
)

func TestInheritedListenerTakesThePlaceOfTheAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, nil, map[string]string{"listen": "192.0.2.1:1"}, func(o *Options) { o.Inherited = l })
	if r.Listen != l.Addr().String() || r.Admin == r.Listen {
		t.Errorf("the proxy listens on %s and admin on %s; want the proxy on %s", r.Listen, r.Admin, l.Addr())
	}
	res, err := http.Get("http://" + r.Listen)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("a request to the inherited listener got %d; want 200", res.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestInheritedListenerNeedsAnUpstream(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := options(t, nil, map[string]string{"api": "127.0.0.1:0"})
	o.Inherited = l
	if err := Run(t.Context(), o); !errors.Is(err, settings.ErrInvalid) {
		t.Errorf("with an inherited listener and no upstream, Run returned %v; want ErrInvalid", err)
	}
}
