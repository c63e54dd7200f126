// SPDX-License-Identifier: Apache-2.0

// Command workload is a load whose truth is known: it runs the drawn paths (e2e/workloads/generate
// prints them into this package) in slices of 1 to 3 ms and reads its own thread clock around each.
//
// The report and the trace have the form that cpp/workload.cc describes.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	clockRealtime   = 0
	clockMonotonic  = 1
	clockProcessCPU = 2
	clockThreadCPU  = 3

	shortestSlice = uint64(time.Millisecond)
	longestSlice  = uint64(3 * time.Millisecond)
)

// path is one way through the drawn functions; steps are their indices, outermost first, ended by
// -1; share is in per mille.
type path struct {
	first    func(*slice, int) uint64
	steps    []int
	kind     string
	callback string
	share    int
}

// slice is one run along a path, whose last function works `work` rounds.
type slice struct {
	steps    []int
	work     uint64
	to, from []byte
	items    []uint32
}

type worker struct {
	random     *rand.Rand
	cpu        []atomic.Uint64 // by path
	total      atomic.Uint64   // of this thread's clock since the worker took it over
	before     uint64          // what the thread's clock said then
	roundsPerN []float64       // by path, per nanosecond, as measured so far
	slice      slice
}

var (
	mode    = "busy"
	seconds = flag.Float64("seconds", 0, "how long to run; 0: for ever")
	threads = flag.Int("threads", 1, "busy threads")
	ms      = flag.Uint64("ms", 100, "short: CPU milliseconds until the end")
	report  = flag.String("report", "", "file of the report, - for standard output")
	trace   = flag.String("trace", "", "file of the trace, - for standard output")

	workers   []*worker
	stopped   atomic.Bool
	began     uint64
	reportTo  *os.File
	traceLock sync.Mutex
	traceTo   *bufio.Writer
)

func clock(which uintptr) uint64 {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, which, uintptr(unsafe.Pointer(&now)), 0)
	return uint64(now.Nano())
}

func over() bool {
	switch {
	case stopped.Load():
		return true
	case mode == "short":
		return clock(clockProcessCPU) >= *ms*uint64(time.Millisecond)
	default:
		return *seconds > 0 && float64(clock(clockMonotonic)-began) >= *seconds*1e9
	}
}

func (w *worker) drawPath() int {
	point := w.random.IntN(1000)
	for i := range paths {
		if point -= paths[i].share; point < 0 {
			return i
		}
	}
	return len(paths) - 1
}

// runSlice runs a path for about want nanoseconds of CPU.
func (w *worker) runSlice(index int, want uint64) {
	p, rate := &paths[index], &w.roundsPerN[index]
	s := &w.slice
	s.steps, s.work = p.steps, uint64(*rate*float64(want))+1
	from, cpuFrom := clock(clockMonotonic), clock(clockThreadCPU)
	p.first(s, 0)
	used := clock(clockThreadCPU) - cpuFrom
	if *rate == 0 {
		// Not known yet: as many rounds again as took a measurable time.
		for used < shortestSlice/4 {
			s.work *= 4
			start := clock(clockThreadCPU)
			p.first(s, 0)
			used = clock(clockThreadCPU) - start
		}
		*rate = float64(s.work) / float64(used)
	} else {
		*rate = 0.9**rate + 0.1*float64(s.work)/float64(used+1)
	}
	cpuEnd := clock(clockThreadCPU)
	w.cpu[index].Add(cpuEnd - cpuFrom)
	w.total.Store(cpuEnd - w.before)
	if traceTo != nil {
		traceLock.Lock()
		fmt.Fprintln(traceTo, syscall.Gettid(), from, clock(clockMonotonic), cpuEnd-cpuFrom, index)
		traceLock.Unlock()
	}
}

func (w *worker) run() {
	runtime.LockOSThread()
	w.before = clock(clockThreadCPU)
	for !over() {
		w.runSlice(w.drawPath(), shortestSlice+w.random.Uint64N(longestSlice-shortestSlice))
	}
}

type pathReport struct {
	Path     []string `json:"path"`
	Leaf     string   `json:"leaf"`
	Kind     string   `json:"kind"`
	Callback string   `json:"callback"`
	Share    int      `json:"share"`
	CPU      uint64   `json:"cpu_ns"`
}

func writeReport() {
	var all struct {
		Monotonic uint64       `json:"monotonic_ns"`
		Realtime  uint64       `json:"realtime_ns"`
		PID       int          `json:"pid"`
		Seed      uint64       `json:"seed"`
		Threads   int          `json:"threads"`
		Entry     []string     `json:"entry"`
		Process   uint64       `json:"process_ns"`
		Total     uint64       `json:"total_ns"`
		Paths     []pathReport `json:"paths"`
	}
	all.Monotonic, all.Realtime = clock(clockMonotonic), clock(clockRealtime)
	all.PID, all.Seed, all.Threads = os.Getpid(), seed, *threads
	all.Entry = []string{threadName, "main.main", "runtime.main", "runtime.goexit", "runtime.mstart"}
	for i, p := range paths {
		one := pathReport{Kind: p.kind, Callback: p.callback, Share: p.share}
		for _, step := range p.steps[:len(p.steps)-1] {
			one.Path = append(one.Path, names[step])
		}
		one.Leaf = one.Path[len(one.Path)-1]
		for _, w := range workers {
			one.CPU += w.cpu[i].Load()
		}
		all.Paths = append(all.Paths, one)
	}
	for _, w := range workers {
		all.Total += w.total.Load()
	}
	all.Process = clock(clockProcessCPU)
	line, err := json.Marshal(all)
	if err != nil {
		panic(err) // no value above can fail
	}
	reportTo.Write(append(line, '\n'))
}

func refuse(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "workload: "+format+"\n", arguments...)
	os.Exit(2)
}

func open(name string) *os.File {
	if name == "-" {
		return os.Stdout
	}
	file, err := os.Create(name)
	if err != nil {
		refuse("%v; give a file that can be written", err)
	}
	return file
}

// flush writes down what is known so far.
func flush() {
	if reportTo != nil {
		writeReport()
	}
	if traceTo != nil {
		traceLock.Lock()
		traceTo.Flush()
		traceLock.Unlock()
	}
}

func main() {
	arguments := os.Args[1:]
	if len(arguments) > 0 && arguments[0][0] != '-' {
		mode, arguments = arguments[0], arguments[1:]
	}
	flag.CommandLine.Parse(arguments)
	if mode != "busy" && mode != "short" {
		refuse("mode: %s; give busy or short", mode)
	}
	if *threads < 1 || *threads > 64 {
		refuse("--threads: %d; give a number from 1 to 64", *threads)
	}
	if *report != "" {
		reportTo = open(*report)
	}
	if *trace != "" {
		traceTo = bufio.NewWriterSize(open(*trace), 1<<20)
	}
	runtime.GOMAXPROCS(*threads + 1)
	began = clock(clockMonotonic)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	var running sync.WaitGroup
	for i := range *threads {
		w := &worker{
			random:     rand.New(rand.NewPCG(seed, uint64(i))),
			cpu:        make([]atomic.Uint64, len(paths)),
			roundsPerN: make([]float64, len(paths)),
			slice: slice{to: make([]byte, 16<<10), from: make([]byte, 16<<10),
				items: make([]uint32, 512)},
		}
		workers = append(workers, w)
		running.Go(func() { thread(w) })
	}
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }()
	second := time.NewTicker(time.Second)
	for {
		select {
		case <-second.C:
			flush()
		case <-signals:
			stopped.Store(true)
		case <-done:
			flush()
			return
		}
	}
}
