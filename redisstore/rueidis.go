package redisstore

import (
	"context"

	"github.com/penstock/penstock/internal/boundedfile"
	"github.com/penstock/penstock/internal/redisclient"
	"github.com/redis/rueidis"
)

// NewRueidis makes a Client that uses the user's own rueidis client. The user must close that
// client. Set DisableRetry in its ClientOption to true. With Sentinel, also set a
// TopologyRefreshInterval.
//
// rueidis panics on a goroutine of its own if a reply is malformed, or if a server sends an error
// before the first command of a connection, as it does when it has too many clients. This ends the
// program. If a proxy loses or repeats a reply, the connection stays out of step: later replies
// answer other calls. The store returns errors for them until the client is closed. Dial and Open
// guard against both; NewRueidis cannot.
func NewRueidis(client rueidis.Client) Client { return rueidisClient{client} }

type rueidisClient struct{ rueidis.Client }

func (c rueidisClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	return result(c.Do(ctx, c.B().Evalsha().Sha1(digest).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()))
}

func (c rueidisClient) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	return result(c.Do(ctx, c.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()))
}

func (c rueidisClient) Sharded(context.Context) (bool, error) {
	return c.Mode() == rueidis.ClientModeCluster, nil
}

func (c rueidisClient) Ping(ctx context.Context) error {
	_, err := result(c.Do(ctx, c.B().Ping().Build()))
	return err
}

func (c rueidisClient) Close() error { return nil }

func result(r rueidis.RedisResult) (string, error) {
	text, err := r.ToString()
	if err != nil {
		return "", asReply(err)
	}
	return text, nil
}

// asReply makes a ReplyError of an error reply, and returns other errors as they are.
func asReply(err error) error {
	if reply, ok := rueidis.IsRedisErr(err); ok {
		return ReplyError(reply.Error())
	}
	return err
}

// ParseURL reads the URL of a server, or of several servers. A URL has one of these forms:
//
//	redis://[user:password@]host[:port][/db]                 one server, or a Cluster
//	redis+cluster://host1:port,host2:port                    a Cluster, by several of its nodes
//	redis+sentinel://[user:password@]host1:port,…/name[/db]  the primary that Sentinels call name
//	unix:///path/to/socket[?db=n]                            one server, by its socket
//
// In each form valkey may replace redis. rediss and valkeys mean TLS (1.2 or later), also in
// rediss+cluster and rediss+sentinel. The port defaults to 6379, for Sentinels to 26379. Options
// follow as ?name=value&…; defaults are in parentheses:
//
//	db                      the database number
//	password_file           a file with the password
//	dial_timeout            how long connecting may take (1s)
//	ca, cert, key           PEM files: the servers' CA, and the client's certificate and key
//	server_name             the name in all certificates (each server's host or address)
//	insecure_skip_verify    true accepts any certificate: for tests only
//	sentinel_username, sentinel_password, sentinel_password_file
//
// The files password_file, sentinel_password_file, cert and key are read again for each new
// connection. So AuthCredentialsFn of the option is set, and has priority over its Password.
//
// An error wraps penstock.ErrInvalid and never shows the password.
func ParseURL(text string) (rueidis.ClientOption, error) { return redisclient.ParseURL(text, readFile) }

// readFile reads a file that a URL names.
func readFile(name string) ([]byte, error) { return boundedfile.Read(name, 1<<20) }

// CheckURL returns the error that ParseURL would return, but reads no file: the files may be on
// another machine.
func CheckURL(text string) error {
	_, err := redisclient.ParseURL(text, nil)
	return err
}

// Dial makes a Client that connects in the background. If it cannot connect, it tries again when it
// is used. ParseURL makes the option.
func Dial(option rueidis.ClientOption) Client {
	return dialedClient{redisclient.Connect(option, asReply)}
}

// Connect makes a rueidis client for commands that a Client does not have. The connections of this
// client are like those of Dial. Connect waits for the first connection. An error reply of the
// server is a ReplyError. The caller must call disconnect, also after an error.
func Connect(ctx context.Context, option rueidis.ClientOption) (c rueidis.Client, disconnect func(), err error) {
	connector := redisclient.Connect(option, asReply)
	c, err = connector.Get(ctx)
	return c, connector.Close, err
}

// A dialedClient is a rueidis client that may not be connected yet.
type dialedClient struct{ *redisclient.Connector }

func (d dialedClient) get(ctx context.Context) (rueidisClient, error) {
	c, err := d.Get(ctx)
	return rueidisClient{c}, err
}

func (d dialedClient) EvalSha(ctx context.Context, digest string, keys, args []string) (string, error) {
	c, err := d.get(ctx)
	if err != nil {
		return "", err
	}
	return c.EvalSha(ctx, digest, keys, args)
}

func (d dialedClient) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	c, err := d.get(ctx)
	if err != nil {
		return "", err
	}
	return c.Eval(ctx, script, keys, args)
}

func (d dialedClient) Ping(ctx context.Context) error {
	c, err := d.get(ctx)
	if err != nil {
		return err
	}
	return c.Ping(ctx)
}

func (d dialedClient) Sharded(ctx context.Context) (bool, error) {
	c, err := d.get(ctx)
	if err != nil {
		return false, err
	}
	return c.Sharded(ctx)
}

func (d dialedClient) Close() error {
	d.Connector.Close()
	return nil
}
