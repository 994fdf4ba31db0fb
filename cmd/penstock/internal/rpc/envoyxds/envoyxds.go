// Package envoyxds receives rate limits from a control plane such as Envoy Gateway. It corresponds
// to the setting CONFIG_TYPE=GRPC_XDS_SOTW of envoyproxy/ratelimit.
package envoyxds

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	configv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock/penstock"
	"github.com/penstock/penstock/cmd/penstock/internal/rpc/envoyconfig"
	"github.com/penstock/penstock/internal/panicked"
)

const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Options configure Follow. Target and Use must be set.
type Options struct {
	Target       string                           // address of the control plane, as for grpc.NewClient
	Credentials  credentials.TransportCredentials // default: a connection without TLS
	NodeID       string                           // default: "default"
	NodeMetadata map[string]string

	MergeDomains bool // see envoyconfig.Options

	// Use applies a configuration. If it returns an error, the client sends the error to the control
	// plane, and the old configuration stays in force. The calls do not overlap.
	Use func(*envoyconfig.Config) error

	// Report is called with nil after a configuration takes effect, and with an error after a
	// configuration is refused or the connection ends. The calls do not overlap.
	Report func(error)

	// MinPause and MaxPause bound the mean pause before a new connection. The pause doubles with each
	// connection that brings no configuration which can be used. Default: 1 s and 60 s.
	MinPause, MaxPause time.Duration

	// MaxMessage is the size of the largest message, in bytes. Default: 64 MiB.
	MaxMessage int
}

const (
	defaultMinPause   = time.Second
	defaultMaxPause   = time.Minute
	defaultMaxMessage = 64 << 20

	// pingAfter is the idle time after which the client pings the server. Servers of grpc-go close
	// connections with more than one ping in five minutes.
	pingAfter = 6 * time.Minute
)

type Client struct {
	options Options
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	ended   chan struct{}
	version string // of the configuration in force
}

// Follow starts a Client, which connects to a control plane and uses its configurations until
// Close. If the connection ends, the client reconnects, and the configuration stays in force. An
// error wraps penstock.ErrInvalid.
func Follow(o Options) (*Client, error) {
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	o.NodeID = cmp.Or(o.NodeID, "default")
	o.MinPause, o.MaxPause = cmp.Or(o.MinPause, defaultMinPause), cmp.Or(o.MaxPause, defaultMaxPause)
	o.MaxMessage = cmp.Or(o.MaxMessage, defaultMaxMessage)
	conn, err := grpc.NewClient(o.Target, grpc.WithTransportCredentials(o.Credentials),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(o.MaxMessage)), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter}))
	if err != nil {
		return nil, fmt.Errorf("%w: envoyxds: target %q: %w", penstock.ErrInvalid, o.Target, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{options: o, conn: conn, cancel: cancel, ended: make(chan struct{})}
	go c.run(ctx)
	return c, nil
}

// Close ends the connection and waits until the client has ended.
func (c *Client) Close() error {
	c.cancel()
	<-c.ended
	return c.conn.Close()
}

func (c *Client) run(ctx context.Context) {
	defer close(c.ended)
	pause := c.options.MinPause
	for {
		hasUsed, err := c.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		c.report(fmt.Errorf("the connection to the control plane %s ended: %w", c.options.Target, err))
		if hasUsed {
			pause = c.options.MinPause
		}
		// The pause is random, so that instances do not all reconnect at the same moment.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, c.options.MaxPause)
	}
}

func (c *Client) report(err error) {
	defer panicked.Recover("the result of a control plane is reported")
	c.options.Report(err)
}

// follow uses the configurations of one stream. hasUsed reports whether it has used at least one.
func (c *Client) follow(ctx context.Context) (hasUsed bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c.conn).StreamAggregatedResources(ctx)
	if err != nil {
		return false, err
	}
	metadata := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	for name, value := range c.options.NodeMetadata {
		metadata.Fields[name] = structpb.NewStringValue(value)
	}
	// The first request has no version, because a control plane that restarted may use the same
	// versions for other configurations.
	first := &discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: c.options.NodeID, Metadata: metadata}, TypeUrl: TypeURL}
	if err := stream.Send(first); err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return hasUsed, err
		}
		if m.GetTypeUrl() != TypeURL {
			continue
		}
		answer := &discoveryv3.DiscoveryRequest{TypeUrl: TypeURL, ResponseNonce: m.GetNonce()}
		useErr := c.use(m.GetResources())
		if useErr == nil {
			c.version, hasUsed = m.GetVersionInfo(), true
		} else {
			answer.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: useErr.Error()}
		}
		answer.VersionInfo = c.version
		c.report(useErr)
		if err := stream.Send(answer); err != nil {
			return hasUsed, err
		}
	}
}

func (c *Client) use(resources []*anypb.Any) error {
	_, err := panicked.Try("use what a control plane sends", func() (struct{}, error) {
		config, err := load(resources, c.options.MergeDomains)
		if err == nil {
			err = c.options.Use(config)
		}
		return struct{}{}, err
	})
	return err
}

var errResourceType = errors.New("the resource is not a RateLimitConfig")

func load(resources []*anypb.Any, mergeDomains bool) (*envoyconfig.Config, error) {
	files := make([]envoyconfig.File, 0, len(resources))
	for i, r := range resources {
		var m configv3.RateLimitConfig
		if err := r.UnmarshalTo(&m); err != nil {
			return nil, fmt.Errorf("resource %d: %w: %w", i, errResourceType, err)
		}
		content, err := json.Marshal(map[string]any{"domain": m.GetDomain(), "descriptors": descriptors(m.GetDescriptors())})
		if err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
		files = append(files, envoyconfig.File{Name: cmp.Or(m.GetName(), fmt.Sprintf("resource %d", i)), Content: escapeNonASCII(content)})
	}
	return envoyconfig.Load(files, envoyconfig.Options{MergeDomains: mergeDomains})
}

// escapeNonASCII replaces the characters from U+007F to U+FFFF by escapes. YAML, unlike JSON,
// refuses some of these characters, and reads others, such as U+0085, as the end of a line.
func escapeNonASCII(content []byte) []byte {
	escaped := make([]byte, 0, len(content))
	for _, r := range string(content) {
		if r >= 0x7f && r <= 0xffff {
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		} else {
			escaped = utf8.AppendRune(escaped, r)
		}
	}
	return escaped
}

// descriptors converts descriptors to the structure of the files: YAML, which includes JSON.
func descriptors(list []*configv3.RateLimitDescriptor) []any {
	all := make([]any, 0, len(list))
	for _, d := range list {
		one := map[string]any{
			"key": d.GetKey(), "value": d.GetValue(), "shadow_mode": d.GetShadowMode(), "detailed_metric": d.GetDetailedMetric(),
			"quota_mode": d.GetQuotaMode(), "descriptors": descriptors(d.GetDescriptors()),
		}
		if m := d.GetMetadata(); m != nil {
			one["metadata"] = m.AsMap()
		}
		if l := d.GetRateLimit(); l != nil {
			one["rate_limit"] = rateLimit(l)
		}
		all = append(all, one)
	}
	return all
}

func rateLimit(l *configv3.RateLimitPolicy) map[string]any {
	limit := map[string]any{"requests_per_unit": l.GetRequestsPerUnit(), "unlimited": l.GetUnlimited(), "name": l.GetName()}
	if l.GetUnit() != configv3.RateLimitUnit_UNKNOWN {
		limit["unit"] = l.GetUnit().String()
	}
	var replaces []any
	for _, r := range l.GetReplaces() {
		replaces = append(replaces, map[string]any{"name": r.GetName()})
	}
	limit["replaces"] = replaces
	return limit
}
