package storagetest

import (
	"sync"
	"testing"
	"time"
)

func TestClock(t *testing.T) {
	c := NewClock()
	if !c.Now().Equal(Epoch) {
		t.Errorf("a new clock shows %v", c.Now())
	}
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { c.Advance(time.Second) })
	}
	wg.Wait()
	if got, want := c.Now(), Epoch.Add(10*time.Second); !got.Equal(want) {
		t.Errorf("the clock shows %v, want %v", got, want)
	}
	c.Set(Epoch.In(time.FixedZone("", 3600)))
	if c.Now() != Epoch {
		t.Errorf("the clock shows %v, want %v in UTC", c.Now(), Epoch)
	}
}
