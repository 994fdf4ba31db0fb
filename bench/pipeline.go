package main

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/penstock/penstock/redisstore"
)

// A pipeline is a connection that sends enough commands in advance that the server never waits for
// one.
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
	chunk = 64 // commands that are written at once
	ahead = 3  // chunks that are written before the replies to the first one are read
)

// A load is a list of commands.
type load struct {
	bytes []byte // of all commands
	ends  []int  // where each command ends in bytes
}

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
func (w *pipeline) run(l *load) error {
	start, read := 0, 0 // bytes that are written, and replies that are read
	for sent := 0; read < len(l.ends); {
		if sent < len(l.ends) {
			sent = min(sent+chunk, len(l.ends))
			if _, err := w.conn.Write(l.bytes[start:l.ends[sent-1]]); err != nil {
				return err
			}
			start = l.ends[sent-1]
			if sent < len(l.ends) && sent-read < ahead*chunk {
				continue
			}
		}
		for upTo := min(read+chunk, sent); read < upTo; read++ {
			if err := w.skipReply(); err != nil {
				return err
			}
		}
	}
	return nil
}

// skipReply reads one reply, and returns an error if it is an error.
func (w *pipeline) skipReply() error {
	line, err := w.replies.ReadSlice('\n')
	if err != nil {
		return err
	}
	switch line[0] {
	case '-':
		return fmt.Errorf("the server answered: %s", line[1:len(line)-2])
	case '$', '*':
	default:
		return nil
	}
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil || n < 0 {
		return err
	}
	if line[0] == '$' {
		_, err := w.replies.Discard(n + len("\r\n"))
		return err
	}
	for range n {
		if err := w.skipReply(); err != nil {
			return err
		}
	}
	return nil
}

// A recorder is a redisstore.Client that only records the commands that a Store sends.
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
	digest := digestOf(script)
	r.scripts[digest] = script
	return r.EvalSha(ctx, digest, keys, args)
}

func (r *recorder) Load(_ context.Context, _ string, scripts []redisstore.Script) error {
	for _, script := range scripts {
		r.scripts[script.Digest] = script.Text
	}
	return nil
}

func (r *recorder) Sharded(context.Context) (bool, error) { return false, nil }
func (r *recorder) Ping(context.Context) error            { return nil }
func (r *recorder) Close() error                          { return nil }

func digestOf(script string) string {
	sum := sha1.Sum([]byte(script))
	return hex.EncodeToString(sum[:])
}
