package resplimit

import (
	"bytes"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/admission"
	"github.com/penstock/penstock/internal/testing/effort"
	"github.com/penstock/penstock/memstore"
)

// pipelineLength is the number of commands in each pipeline here.
const pipelineLength = 64

// throttlePipelines returns pipelines of CL.THROTTLE over 100,000 keys.
func throttlePipelines() (list [][]byte) {
	for first := 0; first < 100_000; first += pipelineLength {
		var s strings.Builder
		for i := range pipelineLength {
			s.WriteString(encode("CL.THROTTLE", fmt.Sprintf("user:%07d", first+i), "15", "30", "60", "1"))
		}
		list = append(list, []byte(s.String()))
	}
	return list
}

// roundTrip sends a pipeline and reads its replies. lines is the number of lines of each reply, and
// buffer is memory for reading.
func (client *testClient) roundTrip(pipeline []byte, lines int, buffer []byte) {
	client.Write(pipeline)
	for missing := pipelineLength * lines; missing > 0; {
		n, err := client.Read(buffer)
		if err != nil {
			client.t.Fatal(err)
		}
		missing -= bytes.Count(buffer[:n], []byte("\n"))
	}
}

// BenchmarkPipeline sends pipelines of 64 commands over loopback, and reads their replies. PING
// measures reading and writing without decisions.
func BenchmarkPipeline(b *testing.B) {
	ping := [][]byte{[]byte(strings.Repeat(encode("PING"), pipelineLength))}
	for _, c := range []struct {
		name      string
		parallel  int // 0: the default
		observe   func(*admission.Event)
		pipelines [][]byte
		lines     int // of each reply
	}{
		{name: "PING", parallel: 1, pipelines: ping, lines: 1},
		{name: "CL.THROTTLE", parallel: 1, pipelines: throttlePipelines(), lines: 6},
		{name: "CL.THROTTLE,observed", parallel: 1, observe: func(*admission.Event) {}, pipelines: throttlePipelines(), lines: 6},
		{name: "CL.THROTTLE,parallel", parallel: 0, pipelines: throttlePipelines(), lines: 6},
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

// Each command allocates its key. Other allocations are made once for a pipeline.
func TestAThrottleAllocatesItsKey(t *testing.T) {
	effort.SkipUnderRace(t)
	pipelines := throttlePipelines()
	for parallel, most := range map[int]float64{1: 1.25, 64: 3.5} { // allocations of a command: as measured, and some reserve
		var observed atomic.Int64
		_, addr := serve(t, memstore.New(memstore.Options{}), nil, Options{Parallel: parallel, Observe: func(*admission.Event) { observed.Add(1) }})
		client, memory, i := connect(t, addr), make([]byte, 64<<10), 0
		for range 2 * len(pipelines) { // afterwards all keys exist, and all memory that is reused
			client.roundTrip(pipelines[i%len(pipelines)], 6, memory)
			i++
		}
		allocations := testing.AllocsPerRun(500, func() {
			client.roundTrip(pipelines[i%len(pipelines)], 6, memory)
			i++
		}) / pipelineLength
		t.Logf("with %d in parallel, a command makes %.2f allocations", parallel, allocations)
		if allocations > most {
			t.Errorf("with %d in parallel, a command makes %.2f allocations; want at most %v", parallel, allocations, most)
		}
		if sent := int64(i * pipelineLength); observed.Load() != sent {
			t.Errorf("with %d in parallel, %d commands have %d events; want one each", parallel, sent, observed.Load())
		}
	}
}
