package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/algorithm"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyrls"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
	"github.com/penstock/penstock/policy"
)

// An inProcessService is Penstock's service without a network.
type inProcessService struct{ engine *envoyrls.Engine }

func (s *inProcessService) respond(request *rls.RateLimitRequest) answer {
	encoded, err := proto.Marshal(request)
	if err != nil {
		return answer{err: err}
	}
	if encoded, err = s.engine.DecideMessage(context.Background(), encoded); err != nil {
		return answer{err: err}
	}
	response := new(rls.RateLimitResponse)
	err = proto.Unmarshal(encoded, response)
	return answer{response: response, err: err}
}

func newInProcess(clock clock, conf *startConfig, o envoyrls.Options) (*inProcessService, error) {
	now := func() time.Time { return time.Unix(clock.now(), 123_456_000) } // ns within the second: any will do
	o.Now, o.HasMetadata, o.ShadowMode, o.QuotaMode = now, conf.settings.hasMetadata, conf.settings.isShadow, conf.settings.isQuota
	o.Algorithm = cmp.Or(o.Algorithm, algorithm.FixedWindow)
	if conf.settings.hasHeaders {
		o.Headers = []envoyrls.Dialect{envoyrls.DialectPlain}
	}
	rules, err := policy.New(policy.Spec{})
	if err != nil {
		return nil, err
	}
	controller, err := admission.New(memstore.New(memstore.Options{Now: now}), rules, admission.Options{Settings: o.Settings})
	if err != nil {
		return nil, err
	}
	engine, err := envoyrls.New(controller, o)
	if err != nil {
		return nil, err
	}
	files, err := envoyconfig.ReadDir(conf.dir)
	if err != nil {
		return nil, err
	}
	config, err := envoyconfig.Load(files, envoyconfig.Options{})
	if err != nil {
		return nil, err
	}
	return &inProcessService{engine}, engine.SetConfig(config)
}

// The model of envoyproxy/ratelimit is compared with Penstock, which has its counters in memory.
// The conformance program compares the model with the real service.
func TestEngineEqualsTheModel(t *testing.T) {
	t.Parallel()
	for mode, modeRules := range map[envoyrls.Mode]rules{envoyrls.Exact: exactRules, envoyrls.Atomic: atomicRules} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			t.Parallel()
			clock := &steppedClock{second: firstSecond}
			var out bytes.Buffer
			c := &comparison{seed: effort.Seed(), onlyDomain: -1, out: &out, clock: clock, rightRules: modeRules}
			c.start = func(conf *startConfig) (responder, responder, func(), error) {
				clock.second = firstSecond
				s, err := newInProcess(clock, conf, envoyrls.Options{Mode: mode})
				return fake{newModel(rules{}, conf.settings, conf.domains...), clock, defect{}}, s, func() {}, err
			}
			if err := c.run(effort.Of(6_000, 12_000)); err != nil {
				t.Fatal(err)
			}
			if c.mismatches > 0 {
				t.Errorf("PENSTOCK_SEED=%d: %d mismatches; want none:\n%s\n%v", c.seed, c.mismatches, &out, &c.tally)
			}
			t.Logf("%v", &c.tally)
		})
	}
}
