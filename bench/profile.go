package main

import (
	"errors"
	"flag"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
)

// profiles are the files to write profiles of the whole run to.
type profiles struct{ cpu, mem, trace string }

func (p *profiles) flags(flags *flag.FlagSet) {
	flags.StringVar(&p.cpu, "cpuprofile", "", "write a CPU profile to this `file`")
	flags.StringVar(&p.mem, "memprofile", "", "write a profile of all allocations to this `file`")
	flags.StringVar(&p.trace, "trace", "", "write an execution trace to this `file`")
}

// start starts what is asked for; the returned function ends it.
func (p *profiles) start() (stop func() error, err error) {
	var stops []func() error
	stop = func() error {
		var errs []error
		for _, f := range stops {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	begin := func(path string, start func(io.Writer) error, end func(io.Writer) error) {
		if path == "" || err != nil {
			return
		}
		var f *os.File
		if f, err = os.Create(path); err != nil {
			return
		}
		stops = append(stops, func() error { return errors.Join(end(f), f.Close()) })
		err = start(f)
	}
	none := func(io.Writer) error { return nil }
	begin(p.cpu, pprof.StartCPUProfile, func(io.Writer) error { pprof.StopCPUProfile(); return nil })
	begin(p.trace, trace.Start, func(io.Writer) error { trace.Stop(); return nil })
	begin(p.mem, none, func(w io.Writer) error {
		runtime.GC() // the profile is as of the last collection
		return pprof.Lookup("allocs").WriteTo(w, 0)
	})
	if err != nil {
		err = errors.Join(err, stop())
	}
	return stop, err
}
