// SPDX-License-Identifier: Apache-2.0

// Sampled by stacks_oracle; which function calls which is fixed.
package main

import "sort"

var sink uint64

//go:noinline
func leafSpin(x uint64) uint64 {
	for i := 0; i < 20000; i++ {
		x = x*2862933555777941757 + 3037000493
	}
	return x
}

//go:noinline
func level3(x uint64) uint64 { return leafSpin(x) + 1 }

//go:noinline
func level2(x uint64) uint64 { return level3(x) + leafSpin(x) }

//go:noinline
func level1(x uint64) uint64 { return level2(x) + 1 }

type words []uint64

func (w words) Len() int { return len(w) }

//go:noinline
func (w words) Less(i, j int) bool { return w[i]*31 < w[j]*31 }
func (w words) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }

//go:noinline
func doSort() {
	w := make(words, 512)
	for i := range w {
		sink = sink*6364136223846793005 + 1
		w[i] = sink
	}
	sort.Sort(w)
}

//go:noinline
func round() {
	sink += level1(sink)
	doSort()
}

//go:noinline
func worker() {
	for {
		round()
	}
}

func main() {
	go worker()
	worker()
}
