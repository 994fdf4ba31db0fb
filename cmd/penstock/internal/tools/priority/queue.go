// Package priority has a queue whose first element is the least.
package priority

// A Queue is a heap. Its elements have no order but that the first is the least.
type Queue[T any] struct {
	all    []T
	isLess func(a, b T) bool
}

// NewQueue makes an empty queue.
func NewQueue[T any](isLess func(a, b T) bool) *Queue[T] { return &Queue[T]{isLess: isLess} }

func (q *Queue[T]) Len() int { return len(q.all) }

// First returns the least element of a queue that is not empty.
func (q *Queue[T]) First() T { return q.all[0] }

// Push adds an element.
func (q *Queue[T]) Push(x T) {
	q.all = append(q.all, x)
	for i := len(q.all) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.isLess(q.all[i], q.all[parent]) {
			return
		}
		q.all[i], q.all[parent] = q.all[parent], q.all[i]
		i = parent
	}
}

// Pop removes the least element of a queue that is not empty.
func (q *Queue[T]) Pop() T {
	first, last := q.all[0], len(q.all)-1
	q.all[0] = q.all[last]
	clear(q.all[last:])
	q.all = q.all[:last]
	q.Fix()
	return first
}

// Shrink frees memory that the elements do not need.
func (q *Queue[T]) Shrink() { q.all = append([]T(nil), q.all...) }

// Fix moves the first element to its place, because it may not be the least any more.
func (q *Queue[T]) Fix() {
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q.all); child++ {
			if q.isLess(q.all[child], q.all[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		q.all[i], q.all[least] = q.all[least], q.all[i]
		i = least
	}
}
