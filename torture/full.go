package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pawlq/pawl/torture/load"
)

// fill leaves no room on the disk for a while. A server that ends by that is started again
// when there is room.
func (x *injector) fill(f fault) (ok bool, err error) {
	x.down()
	defer x.up()
	if err := x.place.disk.fill(); err != nil {
		return false, err
	}
	ok = x.refused()
	time.Sleep(x.spell(f, 0.5, 0.5))
	if err := x.place.disk.empty(); err != nil {
		return false, err
	}
	return ok, x.revive()
}

// fillers use up what room the storage has inside its files. Redis has none.
var fillers = map[string]string{
	"sqlite":   "INSERT INTO torture_filler VALUES (zeroblob(60000))",
	"postgres": "INSERT INTO torture_filler SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 2000)",
	"mysql":    "INSERT INTO torture_filler VALUES (repeat('x', 60000))",
}

// refused waits until the storage has refused to store something, or has ended, and reports
// whether it has.
func (x *injector) refused() bool {
	ctx, cancel := context.WithTimeout(context.Background(), fillTime)
	defer cancel()
	a := &auditor{storage: x.place.storage, s: x.direct}
	for ctx.Err() == nil {
		if x.place.running != nil && !x.place.running() {
			return true
		}
		text := fillers[x.place.storage]
		if text == "" {
			_ = sleep(ctx, 20*time.Millisecond) // the loop looks at ctx
		} else if err := a.exec(ctx, text); err != nil && isFull(err) {
			return true
		}
	}
	return false
}

// fillTime is how long it may take until all room is used up.
const fillTime = 10 * time.Second

// isFull reports whether an error says that there is no room.
func isFull(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "full") || strings.Contains(text, "no space") || strings.Contains(text, "error 28")
}

// revive waits until the server answers, and starts it if it has ended.
func (x *injector) revive() error {
	if x.place.running == nil {
		return nil
	}
	err := errors.New("not asked")
	for until := time.Now().Add(reviveTime); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		if !x.place.running() {
			return x.place.start()
		}
		ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
		_, err = x.direct.Count(ctx, load.Main)
		cancel()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("no answer within %v of room being made: %w", reviveTime, err)
}

const reviveTime = 30 * time.Second
