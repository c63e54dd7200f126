// SPDX-License-Identifier: Apache-2.0

// check reads pprof files with the reference implementation, checks them and prints what it found as JSON, one line a file.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/pprof/profile"
)

type mapping struct {
	File    string `json:"file"`
	BuildID string `json:"buildID"`
	Start   uint64 `json:"start"`
	Limit   uint64 `json:"limit"`
}

type report struct {
	File        string           `json:"path"`
	Sums        map[string]int64 `json:"sums"` // "cpu/nanoseconds" to the sum over all samples
	Samples     int              `json:"samples"`
	Period      int64            `json:"period"`
	PeriodType  string           `json:"periodType"`
	Default     string           `json:"defaultSampleType"`
	TimeNanos   int64            `json:"timeNanos"`
	DurationNs  int64            `json:"durationNanos"`
	Mappings    []mapping        `json:"mappings"`
	Unmapped    int              `json:"locationsWithoutMapping"`
	OutOfBounds int              `json:"locationsOutsideOfTheirMapping"`
	Names       int              `json:"functions"`
}

func check(path string) (*report, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p, err := profile.Parse(file)
	if err != nil {
		return nil, err
	}
	if err := p.CheckValid(); err != nil {
		return nil, err
	}
	r := &report{File: path, Sums: map[string]int64{}, Samples: len(p.Sample), Period: p.Period, Default: p.DefaultSampleType,
		TimeNanos: p.TimeNanos, DurationNs: p.DurationNanos, Names: len(p.Function)}
	if p.PeriodType != nil {
		r.PeriodType = p.PeriodType.Type + "/" + p.PeriodType.Unit
	}
	for i, t := range p.SampleType {
		for _, s := range p.Sample {
			r.Sums[t.Type+"/"+t.Unit] += s.Value[i]
		}
	}
	for _, m := range p.Mapping {
		r.Mappings = append(r.Mappings, mapping{m.File, m.BuildID, m.Start, m.Limit})
	}
	for _, l := range p.Location {
		switch {
		case l.Mapping == nil:
			r.Unmapped++
		case l.Mapping.Limit != 0 && (l.Address < l.Mapping.Start || l.Address >= l.Mapping.Limit):
			r.OutOfBounds++
		}
	}
	return r, nil
}

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		r, err := check(path)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			failed = true
			continue
		}
		line, _ := json.Marshal(r)
		fmt.Println(string(line))
	}
	if failed {
		os.Exit(1)
	}
}
