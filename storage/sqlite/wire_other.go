//go:build !linux

package sqlite

import "errors"

// wire does not exist on this system: the file is polled.
type wire struct{}

func newWire(func()) (*wire, error) { return nil, errors.ErrUnsupported }

func (*wire) set(string) error { return errors.ErrUnsupported }

func (*wire) close() {}
