package accesslog

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/bzip2"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/penstock/penstock/cmd/penstock/internal/tools/priority"
	"github.com/penstock/penstock/internal/wording"
)

// The bounds of reading.
const (
	maxLine     = 64 << 10
	maxFiles    = 1000
	detectLines = 100         // lines by which the format of a file is detected
	maxDelay    = time.Minute // how much earlier than the newest request a request may come
	maxBuffered = 100_000     // requests that wait for earlier ones
	maxBytes    = 256 << 20   // of their lines
	maxExamples = 5
)

// Stats say what was read.
type Stats struct {
	Files      []File        `json:"files"`
	Lines      int64         `json:"lines"`
	Requests   int64         `json:"requests"`
	Rejected   int64         `json:"rejected"` // lines that are no request
	Examples   []Example     `json:"rejected_examples"`
	Late       int64         `json:"late"` // requests that stand too far behind later ones to be put in order
	First      time.Time     `json:"first"`
	Last       time.Time     `json:"last"`
	Resolution time.Duration `json:"resolution_ns"`          // of the times: 1 s for most logs; that of the finest file
	Coarsest   time.Duration `json:"coarsest_resolution_ns"` // that of the file with the coarsest times
	Durations  bool          `json:"has_durations"`
	Statuses   bool          `json:"has_statuses"`
}

// A File is one file, and the name of its format.
type File struct {
	Name   string `json:"name"`
	Format string `json:"format"`
	Unread string `json:"unread,omitempty"` // what its first request has behind what the format describes
}

// An Example is a line that is no request.
type Example struct {
	File string `json:"file"`
	Line int64  `json:"line"`
	Text string `json:"text"`
}

// A Reader reads one or several logs as one. It returns the requests in the order of their times.
type Reader struct {
	// OnRead is called after each read, with how many bytes of the files are read and how many they
	// have: 0 if that is not known. Default: none.
	OnRead func(read, total int64)

	opened  []*source
	sources *priority.Queue[*source] // those that have a next request, which is the earliest for the first
	waiting *priority.Queue[*Entry]
	bytes   int
	newest  time.Time
	last    time.Time
	stats   Stats
	read    int64 // bytes of the files
	total   int64 // their size; 0 if it is not known
}

// Open opens the files. "-" is standard input. A nil format means that the format of each file is
// detected. The caller must Close the Reader.
func Open(names []string, stdin io.Reader, format *Format) (*Reader, error) {
	if len(names) > maxFiles {
		return nil, fmt.Errorf("there are %d files; give at most %d", len(names), maxFiles)
	}
	r := &Reader{sources: priority.NewQueue((*source).isBefore), waiting: priority.NewQueue((*Entry).isBefore)}
	isKnown := true // the size of all files
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return nil, errors.Join(fmt.Errorf("%s is given twice, so its requests would count twice", name), r.Close())
		}
		info, err := os.Stat(name)
		if isKnown = isKnown && err == nil && info.Mode().IsRegular(); isKnown {
			r.total += info.Size()
		}
		s, err := r.openSource(name, stdin, format)
		if err != nil {
			return nil, errors.Join(err, r.Close())
		}
		r.opened = append(r.opened, s)
		s.stats = &r.stats
		r.stats.Files = append(r.stats.Files, File{name, s.format.Name, s.unread})
		if err := s.advance(); err != nil {
			return nil, errors.Join(err, r.Close())
		}
		if s.next != nil {
			r.sources.Push(s)
		}
	}
	if !isKnown {
		r.total = 0
	}
	return r, nil
}

// A countingReader counts what it reads for a Reader.
type countingReader struct {
	io.Reader
	of *Reader
}

func (c countingReader) Read(p []byte) (n int, err error) {
	n, err = c.Reader.Read(p)
	c.of.read += int64(n)
	if c.of.OnRead != nil {
		c.of.OnRead(c.of.read, c.of.total)
	}
	return n, err
}

func (r *Reader) Close() (err error) {
	for _, s := range r.opened {
		err = errors.Join(err, s.close())
	}
	return err
}

// Stats returns what was read so far.
func (r *Reader) Stats() Stats {
	stats := r.stats
	for _, s := range r.opened {
		stats.Coarsest = max(stats.Coarsest, s.finest)
	}
	return stats
}

// Next returns the next request, or io.EOF.
func (r *Reader) Next() (*Entry, error) {
	for r.sources.Len() > 0 {
		if n := r.waiting.Len(); n > 0 && (r.newest.Sub(r.waiting.First().Time) > maxDelay || n >= maxBuffered || r.bytes > maxBytes) {
			break
		}
		s := r.sources.First()
		e := s.next
		r.waiting.Push(e)
		r.bytes += len(e.raw)
		if e.Time.After(r.newest) {
			r.newest = e.Time
		}
		if err := s.advance(); err != nil {
			return nil, err
		}
		if s.next == nil {
			r.sources.Pop()
		} else {
			r.sources.Fix()
		}
	}
	if r.waiting.Len() == 0 {
		return nil, io.EOF
	}
	e := r.waiting.Pop()
	r.bytes -= len(e.raw)
	if e.Time.Before(r.last) {
		r.stats.Late++
		e.Time = r.last
	}
	r.last = e.Time
	if r.stats.Requests++; r.stats.Requests == 1 {
		r.stats.First = e.Time
	}
	r.stats.Last = e.Time
	return e, nil
}

// A source is one file.
type source struct {
	name   string
	lines  *bufio.Reader
	close  func() error
	format *Format
	unread string // behind what the format describes, in the first line
	fields fieldReader
	line   int64
	next   *Entry        // nil before the first and after the last
	finest time.Duration // the smallest step of a time so far; 0 before the first
	stats  *Stats
}

func (s *source) isBefore(other *source) bool { return s.next.Time.Before(other.next.Time) }

// openSource opens a file and detects its format. The first lines are kept in the buffer.
func (r *Reader) openSource(name string, stdin io.Reader, format *Format) (*source, error) {
	s := &source{name: name, format: format, close: func() error { return nil }}
	input := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		s.close, input = f.Close, f
	}
	buffered := bufio.NewReaderSize(countingReader{input, r}, 64<<10)
	text, err := decompress(buffered)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), s.close())
	}
	s.lines = bufio.NewReaderSize(text, 4<<20)
	if format == nil {
		head, err := s.lines.Peek(detectLines * 2048)
		if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
			return nil, errors.Join(fmt.Errorf("%s: %w", name, explained(err)), s.close())
		}
		if s.format, s.unread, err = detect(bytes.TrimPrefix(head, byteOrderMark)); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", name, err), s.close())
		}
	}
	return s, nil
}

// byteOrderMark is at the start of some texts in UTF-8.
var byteOrderMark = []byte("\ufeff")

// decompress returns the text of a file that may be compressed.
func decompress(r *bufio.Reader) (io.Reader, error) {
	magic, _ := r.Peek(4)
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	case bytes.HasPrefix(magic, []byte("BZh")):
		return bzip2.NewReader(r), nil
	}
	return r, nil
}

// detect returns the format that reads most of the first lines, and at least half of them. Of those
// that read about as many, it is the first one. unread is what a line has behind the format.
func detect(head []byte) (f *Format, unread string, err error) {
	lines := strings.Split(string(head), "\n")
	if len(lines) > 1 {
		lines = lines[:len(lines)-1] // the last one may be cut
	}
	lines = slices.DeleteFunc(lines[:min(len(lines), detectLines)], func(l string) bool { return strings.TrimSpace(l) == "" })
	if len(lines) == 0 {
		return nil, "", errors.New("the file is empty")
	}
	if kind := kindOf(lines[0]); kind != "" {
		return nil, "", errors.New(kind)
	}
	if strings.HasPrefix(lines[0], "#") && slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#Fields:") }) {
		return &Format{Name: "w3c"}, "", nil // its lines begin with the names of the fields
	}
	most, other := 0, ""
	for i := range builtIn {
		read, firstUnread, firstOther := 0, "", ""
		for _, line := range lines {
			var fields fieldReader
			e := Entry{}
			rest, ok := builtIn[i].parse(&fields, strings.TrimRight(line, "\r"), &e)
			if !ok || fields.finish(&e) != nil {
				firstOther = cmp.Or(firstOther, line)
			} else if read++; read == 1 {
				firstUnread = strings.TrimSpace(rest)
			}
		}
		if read > most+len(lines)/20 { // a more specific format may read some lines less
			most, f, unread, other = read, &builtIn[i], firstUnread, firstOther
		}
	}
	switch {
	case f == nil:
		return nil, "", fmt.Errorf("the format of the log is not known; the first line is %q. Write --format with the log_format line of your nginx, or with a regular expression", wording.ClipAt(lines[0], 200))
	case most*2 < len(lines):
		return nil, "", fmt.Errorf("only %d of the first %d lines have the format %s; another one is %q. Write --format %s to skip such lines", most, len(lines), f.Name, wording.ClipAt(other, 200), f.Name)
	case !strings.Contains(f.Name, "comm") && !strings.Contains(f.Name, "combined"):
		unread = "" // servers add such fields, which do not matter
	}
	return f, unread, nil
}

// kindOf says what a file is that cannot be a log, by its first line, and how to read it.
func kindOf(line string) string {
	switch {
	case strings.HasPrefix(line, "\xfd7zXZ"), strings.HasPrefix(line, "PK\x03\x04"):
		return "the file is compressed by xz or zip; decompress it, as in xz -dc FILE | penstock replay -"
	case strings.HasPrefix(line, "\xff\xfe"), strings.HasPrefix(line, "\xfe\xff"):
		return "the file is text in UTF-16; convert it to UTF-8, as with iconv"
	case strings.TrimSpace(line) == "[", strings.TrimSpace(line) == "{", strings.HasPrefix(line, "[{"):
		return "the file is JSON with an object in several lines, or a list; write one object per line, as with jq -c '.[]'"
	}
	return ""
}

// reads reads a line into an entry, and reports whether it is a request.
func (f *Format) reads(r *fieldReader, line string, e *Entry) bool {
	_, ok := f.parse(r, line, e)
	return ok && r.finish(e) == nil
}

// explained returns an error of reading with its cause, if the cause is known.
func explained(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the compressed file ends here, in the middle of its data; is it still being written?")
	}
	return err
}

// advance reads the next request of a source. Lines that are none are counted.
func (s *source) advance() error {
	s.next = nil
	for {
		line, err := s.readLine()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", s.name, s.line+1, explained(err))
		}
		if s.line++; s.line == 1 {
			line = strings.TrimPrefix(line, string(byteOrderMark))
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		if strings.HasPrefix(line, "#") {
			s.readDirective(line)
			continue
		}
		s.stats.Lines++
		e := &Entry{raw: line}
		if s.format.parse != nil && len(line) < maxLine && s.format.reads(&s.fields, line, e) {
			s.finest = smaller(s.finest, e.step)
			s.stats.Resolution = smaller(s.stats.Resolution, e.step)
			s.stats.Durations = s.stats.Durations || s.fields.durations
			s.stats.Statuses = s.stats.Statuses || e.Status > 0
			s.next = e
			return nil
		}
		if s.stats.Rejected++; len(s.stats.Examples) < maxExamples {
			s.stats.Examples = append(s.stats.Examples, Example{s.name, s.line, wording.ClipAt(line, 200)})
		}
	}
}

// readLine reads a line without its end. Of a line that is too long, it returns the beginning.
func (s *source) readLine() (string, error) {
	line, err := s.lines.ReadSlice('\n')
	text := strings.TrimRight(string(line[:min(len(line), maxLine)]), "\r\n")
	for err == bufio.ErrBufferFull {
		_, err = s.lines.ReadSlice('\n')
	}
	if err == io.EOF && len(line) > 0 {
		err = nil
	}
	return text, err
}

// readDirective reads a line of the W3C format that begins with #. #Fields names the fields of the
// lines that follow.
func (s *source) readDirective(line string) {
	names, ok := strings.CutPrefix(line, "#Fields:")
	if !ok || s.format.Name != "w3c" {
		return
	}
	fields := strings.Fields(names)
	date, clock := slices.Index(fields, "date"), slices.Index(fields, "time")
	all := append(settersOf(fields), isoTime) // the last is that of date and time
	if date >= 0 && clock >= 0 {
		all[date], all[clock] = nil, nil
	}
	s.format = &Format{"w3c", func(r *fieldReader, line string, e *Entry) (rest string, ok bool) {
		values := strings.Split(line, "\t")
		if len(values) < len(fields) {
			values = strings.Fields(line)
		}
		if len(values) < len(fields) || date < 0 || clock < 0 {
			return "", false
		}
		return "", r.setAll(e, all, append(values[:len(fields)], values[date]+" "+values[clock]))
	}}
}

// smaller returns the smaller of two steps. 0 means that there is none.
func smaller(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
