package redisstore_test

import (
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/internal/testing/redistest"
	"github.com/penstock/penstock/redisstore"
)

// urlsWithTLS returns the URLs of a Cluster and of Sentinels with TLS only. Each server has a
// certificate for its own address or name.
func urlsWithTLS(t *testing.T, config redistest.TLS) map[string]string {
	t.Helper()
	ofCluster, ofSentinels := config, config
	c, s := redistest.StartTLSCluster(t, &ofCluster), redistest.StartTLSSentinel(t, &ofSentinels)
	return map[string]string{
		"cluster":             "rediss+cluster://" + strings.Join(c.Addrs(), ",") + "?" + ofCluster.Options().Encode(),
		"cluster by one node": "rediss+cluster://" + c.Addrs()[0] + "?" + ofCluster.Options().Encode(),
		"sentinel":            "rediss+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName + "?" + ofSentinels.Options().Encode(),
	}
}

// decideEverywhere decides under enough keys that each primary of a Cluster has some.
func decideEverywhere(t *testing.T, url string) error {
	t.Helper()
	store := open(t, url, redisstore.Options{})
	for i := range 30 {
		if _, err := store.Decide(within(t, time.Minute), []penstock.Charge{spend(fmt.Sprint("k", i), slowRefill("d", 9), 1)}); err != nil {
			return err
		}
	}
	return nil
}

func TestEachServerIsVerifiedByItsOwnName(t *testing.T) {
	effort.SkipUnderRace(t)
	t.Parallel()
	for name, config := range map[string]redistest.TLS{
		"by address, with client certificates": {IsClientCertRequired: true, ExtraNames: []string{"redis.test"}},
		"by host name":                         {ServerName: "localhost", ExtraNames: []string{"redis.test"}},
	} {
		t.Run(name, func(t *testing.T) {
			for what, url := range urlsWithTLS(t, config) {
				if err := decideEverywhere(t, url); err != nil {
					t.Errorf("%s: %v; want decisions", what, err)
				}
				if err := decideEverywhere(t, url+"&server_name=redis.test"); err != nil {
					t.Errorf("%s, by a name in all certificates: %v; want decisions", what, err)
				}
				wantReason(t, what+", by a name in no certificate", decideEverywhere(t, url+"&server_name=other.test"), penstock.ReasonUnreachable)
			}
		})
	}
}

func TestServerWithACertificateForAnotherIsUnreachable(t *testing.T) {
	t.Parallel()
	config := &redistest.TLS{ExtraNames: []string{"127.0.3.1", "redis.test"}}
	url := "rediss://" + redistest.StartTLS(t, config).Addr + "?" + config.Options().Encode()
	wantReason(t, "by its address", decideEverywhere(t, url), penstock.ReasonUnreachable)
	for _, name := range []string{"127.0.3.1", "redis.test"} {
		if err := decideEverywhere(t, url+"&server_name="+name); err != nil {
			t.Errorf("by %s: %v; want decisions", name, err)
		}
	}
}

// A server that requires a certificate sends its alert after the client's handshake has ended. So a
// call may get the alert, for example on a new connection to a node of a Cluster.
func TestClientWithoutACertificateIsUnreachable(t *testing.T) {
	t.Parallel()
	config := &redistest.TLS{IsClientCertRequired: true, ExtraNames: []string{"127.0.0.1"}}
	s := redistest.StartTLS(t, config)
	options := config.Options()
	options.Del("cert")
	options.Del("key")
	wantReason(t, "at the first connection", decideEverywhere(t, "rediss://"+s.Addr+"?"+options.Encode()), penstock.ReasonUnreachable)
	// The alerts of RFC 8446 about the client's certificate; see isCertificateRejected.
	for _, alert := range []uint8{42, 43, 44, 45, 46, 48, 49, 116} {
		cause := &net.OpError{Op: "remote error", Err: tls.AlertError(alert)}
		store := newStore(t, brokenClient{err: cause}, redisstore.Options{})
		_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("d", 10), 1)})
		wantReason(t, cause.Error(), err, penstock.ReasonUnreachable)
	}
	// close_notify, bad_record_mac and internal_error can come after a successful handshake.
	for _, alert := range []uint8{0, 20, 80} {
		cause := &net.OpError{Op: "remote error", Err: tls.AlertError(alert)}
		store := newStore(t, brokenClient{err: cause}, redisstore.Options{})
		_, err := store.Decide(t.Context(), []penstock.Charge{spend("k", slowRefill("d", 10), 1)})
		wantReason(t, cause.Error(), err, penstock.ReasonUnknown)
	}
}
