package fastgrpc

import "sync"

// workers are goroutines that handle calls, kept for further ones: their stacks have grown already.
type workers struct {
	all sync.WaitGroup

	mu        sync.Mutex
	idle      []*worker // the one that worked last is used first
	running   int
	isStopped bool
}

// maxIdleWorkers is how many goroutines are kept.
const maxIdleWorkers = 1024

// A worker handles one stream after another.
type worker struct {
	next chan *stream
}

// start has a worker handle the stream, unless limit workers are running.
func (w *workers) start(s *stream, limit int) bool {
	w.mu.Lock()
	if w.running >= limit {
		w.mu.Unlock()
		return false
	}
	w.running++
	if last := len(w.idle) - 1; last >= 0 {
		one := w.idle[last]
		w.idle = w.idle[:last]
		w.mu.Unlock()
		one.next <- s
		return true
	}
	w.mu.Unlock()
	w.all.Go(func() { w.work(&worker{next: make(chan *stream, 1)}, s) })
	return true
}

func (w *workers) work(one *worker, s *stream) {
	for s != nil {
		server := s.conn.server
		s.handle()
		isKept := w.rest(one)
		server.goroutines.Done()
		if !isKept {
			return
		}
		s = <-one.next
	}
}

// rest makes a worker idle. It returns false if the worker must end.
func (w *workers) rest(one *worker) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	if w.isStopped || len(w.idle) >= maxIdleWorkers {
		return false
	}
	w.idle = append(w.idle, one)
	return true
}

// stop ends the workers, which must be idle, and waits for them. Nothing is started afterwards.
func (w *workers) stop() {
	w.mu.Lock()
	w.isStopped = true
	for _, one := range w.idle {
		one.next <- nil
	}
	w.idle = nil
	w.mu.Unlock()
	w.all.Wait()
}
