package resplimit

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/effort"
	"github.com/penstock/penstock/memstore"
)

// pipelineLength is the number of commands in each pipeline here.
const pipelineLength = 64

// throttles are pipelines of CL.THROTTLE over 100,000 keys.
func throttles() (list [][]byte) {
	for first := 0; first < 100_000; first += pipelineLength {
		var s strings.Builder
		for i := range pipelineLength {
			s.WriteString(encode("CL.THROTTLE", fmt.Sprintf("user:%07d", first+i), "15", "30", "60", "1"))
		}
		list = append(list, []byte(s.String()))
	}
	return list
}

// roundTrip sends a pipeline and reads its replies. Each reply has this many lines. memory is for
// reading.
func (client *testClient) roundTrip(pipeline []byte, lines int, memory []byte) {
	client.Write(pipeline)
	for missing := pipelineLength * lines; missing > 0; {
		n, err := client.Read(memory)
		if err != nil {
			client.t.Fatal(err)
		}
		missing -= bytes.Count(memory[:n], []byte("\n"))
	}
}

// BenchmarkPipeline sends pipelines of 64 over loopback, and reads their replies. PING is the bare
// handler: what remains is reading and writing.
func BenchmarkPipeline(b *testing.B) {
	ping := [][]byte{[]byte(strings.Repeat(encode("PING"), pipelineLength))}
	for _, c := range []struct {
		name      string
		parallel  int // 0: the default
		observe   func(*admission.Event)
		pipelines [][]byte
		lines     int // of each reply
	}{
		{"PING", 1, nil, ping, 1}, {"CL.THROTTLE", 1, nil, throttles(), 6}, {"CL.THROTTLE,observed", 1, func(*admission.Event) {}, throttles(), 6},
		{"CL.THROTTLE,parallel", 0, nil, throttles(), 6},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, addr := serve(b, memstore.New(memstore.Options{}), nil, Options{Parallel: c.parallel, Observe: c.observe})
			client, memory := connect(b, addr), make([]byte, 64<<10)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N/pipelineLength + 1 {
				client.roundTrip(c.pipelines[i%len(c.pipelines)], c.lines, memory)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// A command allocates its key. The rest is divided among the commands of a pipeline.
func TestAThrottleAllocatesItsKey(t *testing.T) {
	effort.WithoutRace(t)
	pipelines := throttles()
	for parallel, most := range map[int]float64{1: 1.25, 64: 3.5} { // as measured, and some reserve
		var observed atomic.Int64
		_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{Parallel: parallel, Observe: func(*admission.Event) { observed.Add(1) }})
		client, memory, i := connect(t, addr), make([]byte, 64<<10), 0
		for range 2 * len(pipelines) { // all keys exist, and all memory that is used again
			client.roundTrip(pipelines[i%len(pipelines)], 6, memory)
			i++
		}
		n := testing.AllocsPerRun(500, func() {
			client.roundTrip(pipelines[i%len(pipelines)], 6, memory)
			i++
		}) / pipelineLength
		t.Logf("%d in parallel: %.2f allocations for a command", parallel, n)
		if n > most {
			t.Errorf("%d in parallel: %.2f allocations for a command; want %v at most", parallel, n, most)
		}
		if sent := int64(i * pipelineLength); observed.Load() != sent {
			t.Errorf("%d in parallel: %d commands have %d events; want one each", parallel, sent, observed.Load())
		}
	}
}
