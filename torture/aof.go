package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/check"
)

// The witness of Redis is its append-only file, which is never rewritten here: it holds
// all that scripts have written, whoever called them, script by script. An aofReader
// follows in it the state of each job, which is the sorted set that its ID was last
// put into.
type aofReader struct {
	in    *bufio.Reader
	jobs  map[pawl.ID]aofJob
	next  map[pawl.ID]aofJob // what the present script makes of jobs
	inTx  bool
	moves map[[2]int]int64
	bad   []string
	twice []pawl.ID
}

// An aofJob is what the file says of a job so far.
type aofJob struct {
	state int // 0 is gone, or not there yet
	fence float64
	body  bool // it has its request
}

// aofStates are the states of the sorted sets, by suffix of their keys.
var aofStates = map[string]pawl.State{"d": pawl.Scheduled, "w": pawl.Ready, "c": pawl.Running, "o": pawl.Completed, "u": pawl.Buried, "n": pawl.Canceled}

// aofFolder is where Redis keeps its files, in its own folder.
const aofFolder = "appendonlydir"

// readAOF fills in what the append-only files in a folder say.
func readAOF(dir string, in *check.Input) error {
	names, err := filepath.Glob(filepath.Join(dir, aofFolder, "*.incr.aof"))
	if err != nil {
		return err
	}
	if len(names) != 1 {
		return fmt.Errorf("%d append-only files, and there must be one that was never rewritten", len(names))
	}
	f, err := os.Open(names[0])
	if err != nil {
		return err
	}
	defer f.Close()
	a := newAOFReader(f)
	if err := a.read(); err != nil {
		return fmt.Errorf("%s: %w", names[0], err)
	}
	a.fill(in)
	return nil
}

func newAOFReader(r io.Reader) *aofReader {
	return &aofReader{in: bufio.NewReaderSize(r, 1<<20), jobs: map[pawl.ID]aofJob{}, next: map[pawl.ID]aofJob{}, moves: map[[2]int]int64{}}
}

func (a *aofReader) read() error {
	for {
		words, err := a.command()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		a.take(words)
	}
}

var errAOF = errors.New("not a command")

// command reads one command.
func (a *aofReader) command() (words [][]byte, err error) {
	n, err := a.number('*')
	if err != nil {
		return nil, err
	}
	words = make([][]byte, n)
	for i := range words {
		size, err := a.number('$')
		if err != nil {
			return nil, errors.Join(errAOF, err)
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(a.in, b); err != nil {
			return nil, err
		}
		words[i] = b[:size]
	}
	return words, nil
}

func (a *aofReader) number(sign byte) (int, error) {
	line, err := a.in.ReadBytes('\n')
	if err != nil {
		return 0, err
	}
	if line[0] != sign || len(line) < 3 {
		return 0, errAOF
	}
	return strconv.Atoi(string(line[1 : len(line)-2]))
}

// take takes in a command: alone, or as a part of a script.
func (a *aofReader) take(words [][]byte) {
	switch name := string(bytes.ToUpper(words[0])); name {
	case "MULTI":
		a.inTx = true
	case "EXEC":
		a.inTx = false
	case "ZADD", "HSET", "HDEL":
		key := string(words[1])
		a.write(name, key[len(key)-1:], words[2:])
	}
	if !a.inTx {
		a.commit()
	}
}

// write takes in what is written to a key with a suffix.
func (a *aofReader) write(name, suffix string, args [][]byte) {
	step, member := 2, 0
	if name == "HDEL" {
		step = 1
	}
	if name == "ZADD" {
		member = 1
	}
	for i := 0; i+step <= len(args); i += step {
		text := args[i+member]
		if len(text) < len(pawl.ID{}) {
			continue // no job's
		}
		id := pawl.ID(text[len(text)-len(pawl.ID{}):]) // which is the end of all members and fields
		j, ok := a.next[id]
		if !ok {
			j = a.jobs[id]
		}
		if name == "ZADD" {
			a.put(id, &j, suffix, args[i])
		} else {
			j.keep(suffix, name == "HSET")
		}
		a.next[id] = j
	}
}

// put takes in that a job was put into a sorted set.
func (a *aofReader) put(id pawl.ID, j *aofJob, suffix string, score []byte) {
	state, ok := aofStates[suffix]
	if !ok {
		return // an index
	}
	was := pawl.State(j.state)
	j.state = int(state)
	if state != pawl.Running {
		return
	}
	fence, err := strconv.ParseFloat(string(score), 64)
	switch {
	case err != nil || fence < j.fence:
		a.bad = append(a.bad, fmt.Sprintf("job %v got the fence %s after %.0f", id, score, j.fence))
	case was == pawl.Running && fence != j.fence:
		// A script that settles and claims it again makes it ready in between.
		a.bad = append(a.bad, fmt.Sprintf("job %v got the fence %s while it ran under %.0f", id, score, j.fence))
	}
	j.fence = fence
}

// keep takes in that a part of a job was written, or removed.
func (j *aofJob) keep(suffix string, there bool) {
	if suffix != "b" {
		return
	}
	if j.body = there; !there {
		j.state = 0
	}
}

// commit compares what a script has made of its jobs with what they were.
func (a *aofReader) commit() {
	for id, j := range a.next {
		was, now := a.jobs[id], j
		from, to := was.state, now.state
		if from == 0 {
			from = -1
		}
		if to == 0 {
			to = -1
		}
		// A script may settle a job and claim it again: put has seen whether it did.
		if from != to || to == int(pawl.Running) && was.fence != now.fence {
			a.moves[[2]int{from, to}]++
		}
		if from == int(pawl.Completed) && to != from {
			a.twice = append(a.twice, id)
		}
		a.jobs[id] = j
	}
	clear(a.next)
}

// fill fills in what was read.
func (a *aofReader) fill(in *check.Input) {
	in.Illegal = append(in.Illegal, a.bad...)
	in.Twice = append(in.Twice, a.twice...)
	for move, n := range a.moves {
		in.Changes += n
		if !legal[move] {
			in.Illegal = append(in.Illegal, fmt.Sprintf("%d jobs went from state %d to %d", n, move[0], move[1]))
		}
	}
	left := 0
	for _, j := range a.jobs {
		if j.state > 0 && !j.body {
			left++
		}
	}
	if left > 0 {
		in.Orphans = append(in.Orphans, fmt.Sprintf("%d entries of jobs that are gone", left))
	}
}
