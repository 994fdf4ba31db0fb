package envoyxds

import (
	"reflect"
	"testing"

	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

func TestTextsOfResourcesAreNotChanged(t *testing.T) {
	for _, text := range []string{"true", "1.5", "~", "a: b", "'\"\\", "\x00\t\n\x7f", "\u0085x\u009f", "\u2028", "\ufeffx", "\uffff", "é😀"} {
		resource, err := anypb.New(&configv3.RateLimitConfig{Domain: "d", Descriptors: []*configv3.RateLimitDescriptor{
			{Key: text, RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_DAY, RequestsPerUnit: 1}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		config, err := load([]*anypb.Any{resource}, false)
		if err != nil {
			t.Errorf("load of a resource with the key %q returns %v; want no error", text, err)
		} else if got := config.Limits()[0].Path; got != "d."+text {
			t.Errorf("the path is %q; want %q", got, "d."+text)
		}
	}
}

func TestDescriptorsKeepQuotaModeAndMetadata(t *testing.T) {
	metadata := map[string]any{"service": map[string]any{"name": "é\u2028"}, "n": 1.5, "list": []any{"x", true}}
	sent, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	resource, err := anypb.New(&configv3.RateLimitConfig{Domain: "d", Descriptors: []*configv3.RateLimitDescriptor{
		{Key: "k", QuotaMode: true, Metadata: sent, RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_DAY, RequestsPerUnit: 1}},
		{Key: "plain", RateLimit: &configv3.RateLimitPolicy{Unit: configv3.RateLimitUnit_DAY, RequestsPerUnit: 1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	config, err := load([]*anypb.Any{resource}, false)
	if err != nil {
		t.Fatal(err)
	}
	if l := config.Limits()[0]; !l.QuotaMode || !reflect.DeepEqual(l.Metadata, metadata) {
		t.Errorf("the limit has quota_mode %t and the metadata %v; want true and %v", l.QuotaMode, l.Metadata, metadata)
	}
	if l := config.Limits()[1]; l.QuotaMode || l.Metadata != nil {
		t.Errorf("the limit without both has quota_mode %t and the metadata %v; want neither", l.QuotaMode, l.Metadata)
	}
}
