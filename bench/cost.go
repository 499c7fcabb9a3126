package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cost is what has been spent since some moment.
type cost struct {
	log     int64         // bytes that the server has written to its log
	figure  string        // of the log; empty if there is none
	cpu     time.Duration // of this process and the server's
	mallocs uint64        // in this process
}

// spent takes a reading of what the cell has cost up to now.
func (c *Cell) spent(ctx context.Context) (spent cost, err error) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	spent.mallocs = m.Mallocs
	spent.cpu = cpuOfProcess()
	if s, ok := c.Sys.(onServer); ok {
		server, err := s.ServerCPU(ctx)
		if err != nil {
			return spent, err
		}
		spent.cpu += server
		spent.figure, spent.log, err = s.Logged(ctx)
		return spent, err
	}
	if c.Place.DB == nil {
		return spent, nil
	}
	spent.figure = "wal-per-job"
	if spent.log, err = c.Place.DB.WAL(ctx); err != nil {
		return spent, err
	}
	server, err := c.Place.DB.CPU(ctx)
	spent.cpu += server
	return spent, err
}

// per are the metrics of a cost over n jobs. Those of a drain have no prefix.
func (before cost) per(n int64, after cost, prefix string) []Metric {
	if n == 0 {
		return nil
	}
	per := func(x float64) float64 { return x / float64(n) }
	metrics := []Metric{
		{prefix + "cpu-per-job", per(float64((after.cpu - before.cpu).Nanoseconds()) / 1e3), "µs", true},
		{prefix + "allocs-per-job", per(float64(after.mallocs - before.mallocs)), "allocs", true},
	}
	if after.log > before.log {
		metrics = append(metrics, Metric{prefix + after.figure, per(float64(after.log - before.log)), "B", true})
	}
	return metrics
}

// size is how many bytes the storage takes, 0 if it is not kept on disk nor by a server.
func (c *Cell) size(ctx context.Context) (int64, error) {
	if c.Place.DB != nil {
		return c.Place.DB.Size(ctx)
	}
	if s, ok := c.Sys.(onServer); ok {
		return s.Bytes(ctx)
	}
	files, err := filepath.Glob(filepath.Join(c.Place.Dir, "*.db"))
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return 0, err
		}
		sum += info.Size()
	}
	return sum, nil
}

func cpuOfProcess() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // it can't fail with this argument
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// CPU is what the server's processes have used, those that have ended included;
// 0 if they are not on this machine.
func (d *Database) CPU(ctx context.Context) (time.Duration, error) {
	var file string
	if err := d.pool.QueryRow(ctx, "SELECT pg_read_file('postmaster.pid')").Scan(&file); err != nil {
		return 0, nil //nolint:nilerr // only a superuser may; the figure then lacks the server's share
	}
	postmaster, _, _ := strings.Cut(file, "\n")
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var ticks int64
	for _, path := range stats {
		ticks += ticksOf(path, postmaster)
	}
	const perSecond = 100 // USER_HZ of Linux
	return time.Duration(ticks) * time.Second / perSecond, nil
}

// ticksOf is the time of a process if it is the postmaster or a child of it.
func ticksOf(path, postmaster string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0 // ended meanwhile
	}
	// pid (name) state ppid ... utime stime cutime cstime, and the name may hold
	// anything.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 15 || !strings.HasPrefix(fields[0], "S") && !strings.HasPrefix(fields[0], "R") && !strings.HasPrefix(fields[0], "D") {
		return 0
	}
	times := fields[11:13]
	if filepath.Base(filepath.Dir(path)) == postmaster {
		times = fields[11:15]
	} else if fields[1] != postmaster {
		return 0
	}
	var sum int64
	for _, t := range times {
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil {
			return 0
		}
		sum += n
	}
	return sum
}
