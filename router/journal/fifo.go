// SPDX-License-Identifier: Apache-2.0
// Copyright The Segue Authors

package journal

// fifo is a queue in one slice.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }

func (q *fifo[T]) len() int { return len(q.items) - q.head }

// at is the i-th oldest.
func (q *fifo[T]) at(i int) T { return q.items[q.head+i] }

// pop removes the n oldest. The room is given back when half of the slice is empty.
func (q *fifo[T]) pop(n int) {
	clear(q.items[q.head : q.head+n])
	if q.head += n; q.head > len(q.items)/2 {
		q.items = append([]T(nil), q.items[q.head:]...)
		q.head = 0
	}
}
