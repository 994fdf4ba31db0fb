// Package workers keeps goroutines for further tasks, because their stacks have already grown. In a
// new goroutine, growing the stack takes longer than a decision.
package workers

import "sync"

// A Pool has goroutines that do tasks of one kind. Make one with New.
type Pool[T any] struct {
	do         func(T)
	maxRunning int
	goroutines sync.WaitGroup

	mu        sync.Mutex
	idle      []chan task[T] // of each idle goroutine; the last of them worked most recently, and is used first
	running   int
	isStopped bool
}

type task[T any] struct {
	argument T
	isEnd    bool // there is no task: the goroutine must end
}

// maxIdle is the largest number of idle goroutines that are kept.
const maxIdle = 1024

// New returns a Pool that does at most limit tasks at a time.
func New[T any](limit int, do func(T)) *Pool[T] { return &Pool[T]{do: do, maxRunning: limit} }

// Start begins a task in a goroutine of the pool. It returns false if the limit of running tasks is
// reached, or if the pool was stopped.
func (p *Pool[T]) Start(argument T) bool {
	p.mu.Lock()
	if p.isStopped || p.running >= p.maxRunning {
		p.mu.Unlock()
		return false
	}
	p.running++
	if last := len(p.idle) - 1; last >= 0 {
		next := p.idle[last]
		p.idle = p.idle[:last]
		p.mu.Unlock()
		next <- task[T]{argument: argument}
		return true
	}
	p.goroutines.Add(1) // with mu held, so that Stop waits for it
	p.mu.Unlock()
	go p.work(make(chan task[T], 1), argument)
	return true
}

func (p *Pool[T]) work(next chan task[T], argument T) {
	defer p.goroutines.Done()
	for {
		p.do(argument)
		if !p.becomeIdle(next) {
			return
		}
		t := <-next
		if t.isEnd {
			return
		}
		argument = t.argument
	}
}

// becomeIdle makes a goroutine idle. It returns false if the goroutine must end.
func (p *Pool[T]) becomeIdle(next chan task[T]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if p.isStopped || len(p.idle) >= maxIdle {
		return false
	}
	p.idle = append(p.idle, next)
	return true
}

func (p *Pool[T]) Running() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running
}

// Stop waits until the running tasks and all goroutines have ended. No task starts afterwards.
func (p *Pool[T]) Stop() {
	p.mu.Lock()
	p.isStopped = true
	for _, next := range p.idle {
		next <- task[T]{isEnd: true}
	}
	p.idle = nil
	p.mu.Unlock()
	p.goroutines.Wait()
}
