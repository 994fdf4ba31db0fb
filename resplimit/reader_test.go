package resplimit

import (
	"bytes"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// readAll reads commands until the input ends or breaks the protocol. It calls check after each
// fill of the buffer.
func readAll(from io.Reader, check func(*reader)) (commands [][]string, err error) {
	r := newReader(from)
	for {
		if err := r.fill(); err != nil {
			if err == io.EOF {
				err = nil
			}
			return commands, err
		}
		check(r)
		for {
			args, err := r.next()
			if err != nil {
				return commands, err
			}
			if args == nil {
				break
			}
			var words []string
			for _, arg := range args {
				words = append(words, string(arg))
			}
			commands = append(commands, words)
		}
	}
}

func TestCommandsAreReadHoweverTheyArrive(t *testing.T) {
	long := strings.Repeat("k", maxBulk)
	input := "PING\r\n\r\n  ECHO 'it\\'s' \"a\\x41\\n\\\"\" \n" + encode("DEL", "") + "*0\r\n*-1\r\n" + encode(slices.Repeat([]string{long}, maxArgs)...) +
		"ECHO " + strings.Repeat(" ", maxInline-6) + "x\n" + encode("PING") + "*1\r\n$4\r\nPI"
	want := [][]string{{"PING"}, {"ECHO", "it's", "aA\n\""}, {"DEL", ""}, slices.Repeat([]string{long}, maxArgs), {"ECHO", "x"}, {"PING"}}
	for name, from := range map[string]io.Reader{
		"in one call": strings.NewReader(input), "byte by byte": iotest.OneByteReader(strings.NewReader(input)),
		"in halves": iotest.HalfReader(strings.NewReader(input)), "with io.EOF beside the last bytes": iotest.DataErrReader(strings.NewReader(input)),
	} {
		got, err := readAll(from, func(*reader) {})
		if err != nil || !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("%s: the commands are %.200q, %v; want %.200q", name, got, err, want)
		}
	}
}

func TestLengthsAreCheckedBeforeAnythingIsAllocated(t *testing.T) {
	huge := []string{"17", "1048576", "2147483648", "9223372036854775807", "9223372036854775808", "18446744073709551617", strings.Repeat("9", 40)}
	var inputs []string
	for _, n := range huge {
		inputs = append(inputs, "*"+n+"\r\n")
	}
	for _, n := range append(huge[1:], "4097") {
		inputs = append(inputs, "*1\r\n$"+n+"\r\n")
	}
	inputs = append(inputs, strings.Repeat("a", maxInline+1), "*16\r\n"+strings.Repeat("$0\r\n\r\n", 15)+"$-1\r\n", strings.Repeat("a ", maxArgs+1)+"\r\n",
		strings.Repeat("a", maxBulk+1)+"\r\n", "*"+strings.Repeat("1", 100), "*1\r\n$"+strings.Repeat(" ", 100))
	for _, input := range inputs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := readAll(strings.NewReader(input), func(*reader) {})
		runtime.ReadMemStats(&after)
		if _, ok := errors.AsType[protocolError](err); !ok {
			t.Errorf("input %.40q: the error is %v; want a protocolError", input, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 4*maxBuffer {
			t.Errorf("input %.40q: %d bytes were allocated; want at most %d", input, n, 4*maxBuffer)
		}
	}
}

func TestNumbersAreReadAsRedisReadsThem(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-1": -1, "10": 10, "9223372036854775807": math.MaxInt64, "-9223372036854775808": math.MinInt64} {
		if got, ok := parseInt([]byte(text)); !ok || got != want {
			t.Errorf("%q is parsed as %d, %v; want %d, true", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "-", "+1", "01", "-0", "00", " 1", "1 ", "1a", "0x1", "9223372036854775808", "-9223372036854775809", "99999999999999999999"} {
		if got, ok := parseInt([]byte(text)); ok {
			t.Errorf("%q is parsed as %d; want an error", text, got)
		}
	}
}

// For any input, the buffer is bounded, and the commands do not depend on how many bytes each read
// returns.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{"PING\r\n", "*1\r\n$4\r\nPING\r\n", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", "*9223372036854775807\r\n", "*1\r\n$9223372036854775807\r\n",
		"ECHO \"a\\x41\" 'b\\''\n", "*0\r\n*-1\r\n\r\n", "POST / HTTP/1.1\r\nHost: x\r\n", "*1\r\n$4\r\nPINGPING\r\n"} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, chunk uint8) {
		received := 0
		check := func(r *reader) {
			received += r.end - r.start
			if len(r.buffer) > maxBuffer || len(r.buffer) > max(minBuffer, 2*received) {
				t.Fatalf("the buffer has %d bytes after %d bytes were received; want at most %d, and at most twice those received", len(r.buffer), received, maxBuffer)
			}
		}
		whole, wholeErr := readAll(bytes.NewReader(data), check)
		received = 0
		parts, partsErr := readAll(&chunks{data, 1 + int(chunk)}, check)
		if !slices.EqualFunc(whole, parts, slices.Equal) || (wholeErr == nil) != (partsErr == nil) {
			t.Fatalf("the commands of input %q, read in parts of %d bytes, are %q, %v; want, as from one read, %q, %v", data, 1+int(chunk), parts, partsErr, whole, wholeErr)
		}
		for _, args := range whole {
			if len(args) > maxArgs || slices.ContainsFunc(args, func(arg string) bool { return len(arg) > maxBulk }) {
				t.Fatalf("a command has %d arguments: %.100q; want at most %d, of at most %d bytes", len(args), args, maxArgs, maxBulk)
			}
		}
	})
}

// chunks is an io.Reader that returns data in parts.
type chunks struct {
	data []byte
	size int // of a part, in bytes
}

func (c *chunks) Read(p []byte) (n int, err error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n = copy(p[:min(len(p), c.size)], c.data)
	c.data = c.data[n:]
	return n, nil
}

func TestRepliesHaveTheFormatOfTheProtocolVersion(t *testing.T) {
	for proto, want := range map[int]string{
		2: "+a\r\n-b c  d\r\n:-7\r\n$1\r\ne\r\n$1\r\nf\r\n$-1\r\n*2\r\n",
		3: "+a\r\n-b c  d\r\n:-7\r\n$1\r\ne\r\n=5\r\ntxt:f\r\n_\r\n%1\r\n",
	} {
		r := reply{respVersion: proto}
		r.simple("a")
		r.fail("b c\r\nd")
		r.integer(-7)
		r.bulk("e")
		r.text("f")
		r.null()
		r.pairs(1)
		if got := string(r.bytes); got != want {
			t.Errorf("in version %d of the protocol the replies are %q; want %q", proto, got, want)
		}
	}
}

// Before AUTH, a client cannot make the buffer large, and AUTH with the longest password fits.
func TestCommandsBeforeAuthAreSmall(t *testing.T) {
	longest := encode("HELLO", "3", "AUTH", "default", strings.Repeat("p", maxBulk))
	for name, c := range map[string]struct {
		text string
		fits bool
	}{
		"AUTH":   {longest, true},
		"line":   {strings.Repeat("P", 20_000), false},
		"array":  {encode("SET", strings.Repeat("a", maxBulk), strings.Repeat("b", maxBulk), "c"), false},
		"second": {longest + longest, true},
	} {
		r := newReader(strings.NewReader(c.text))
		r.most = maxBeforeAuth
		var err error
		for err == nil {
			for args := [][]byte{nil}; args != nil && err == nil; {
				args, err = r.next()
			}
			if err == nil {
				err = r.fill()
			}
		}
		if fits := err == io.EOF; fits != c.fits || len(r.buffer) > maxBeforeAuth {
			t.Errorf("%s: a buffer of %d bytes, and %v; want at most %d, and that it fits: %t", name, len(r.buffer), err, maxBeforeAuth, c.fits)
		}
	}
}
