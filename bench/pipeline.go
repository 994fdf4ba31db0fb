package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/penstock/penstock/internal/luagen"
	"github.com/penstock/penstock/redisstore"
)

// A pipeline is a connection to the server. It sends so many commands in advance that the server
// never waits for the next one.
type pipeline struct {
	conn    net.Conn
	replies *bufio.Reader
}

func dialPipeline(socket string) (*pipeline, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return &pipeline{conn, bufio.NewReaderSize(conn, 64<<10)}, nil
}

const (
	chunk     = 64 // commands that are written together
	maxChunks = 3  // chunks that are written before the replies to the first one are read
)

// A load is a list of commands.
type load struct {
	bytes []byte // of all commands
	ends  []int  // where each command ends in bytes
}

// add appends a command in Redis' protocol.
func (l *load) add(words ...string) {
	b := append(l.bytes, '*')
	b = strconv.AppendInt(b, int64(len(words)), 10)
	b = append(b, "\r\n"...)
	for _, word := range words {
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(word)), 10)
		b = append(b, "\r\n"...)
		b = append(b, word...)
		b = append(b, "\r\n"...)
	}
	l.bytes, l.ends = b, append(l.ends, len(b))
}

// run sends the load and reads all replies. It returns the first error.
func (p *pipeline) run(l *load) error {
	sentBytes, sent, replies := 0, 0, 0 // sent counts commands
	for replies < len(l.ends) {
		if sent < len(l.ends) {
			sent = min(sent+chunk, len(l.ends))
			end := l.ends[sent-1]
			if _, err := p.conn.Write(l.bytes[sentBytes:end]); err != nil {
				return err
			}
			sentBytes = end
			isFarAhead := sent-replies >= maxChunks*chunk
			if sent < len(l.ends) && !isFarAhead {
				continue
			}
		}
		for upTo := min(replies+chunk, sent); replies < upTo; replies++ {
			if err := p.skipReply(); err != nil {
				return err
			}
		}
	}
	return nil
}

// skipReply reads one reply. It returns an error if the reply is an error.
func (p *pipeline) skipReply() error {
	line, err := p.replies.ReadSlice('\n')
	if err != nil {
		return err
	}
	switch line[0] {
	case '-':
		return fmt.Errorf("the server returned the error %q", line[1:len(line)-2])
	case '$', '*':
	default:
		return nil
	}
	length, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || length < 0 { // -1: null
		return err
	}
	if line[0] == '$' {
		_, err := p.replies.Discard(length + len("\r\n"))
		return err
	}
	for range length {
		if err := p.skipReply(); err != nil {
			return err
		}
	}
	return nil
}

// A recorder is a redisstore.Client that only records the commands that a Store sends. It has no
// replies: EvalSha returns an error.
type recorder struct {
	load    *load
	scripts map[string]string // texts of the scripts, by digest
}

func (r *recorder) EvalSha(_ context.Context, digest string, keys, args []string) (string, error) {
	if r.scripts[digest] == "" {
		return "", redisstore.ReplyError("NOSCRIPT")
	}
	words := append([]string{"EVALSHA", digest, strconv.Itoa(len(keys))}, keys...)
	r.load.add(append(words, args...)...)
	return "", io.EOF
}

func (r *recorder) Eval(ctx context.Context, script string, keys, args []string) (string, error) {
	digest := luagen.Digest(script)
	r.scripts[digest] = script
	return r.EvalSha(ctx, digest, keys, args)
}

func (r *recorder) Load(_ context.Context, _ string, scripts []string) error {
	for _, script := range scripts {
		r.scripts[luagen.Digest(script)] = script
	}
	return nil
}

func (r *recorder) Sharded(context.Context) (bool, error) { return false, nil }
func (r *recorder) Ping(context.Context) error            { return nil }
func (r *recorder) Close() error                          { return nil }
