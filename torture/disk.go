package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// A disk is a file system of its own, of which no room can be left.
type disk struct{ dir string }

// errNoDisk says that there can be no disk here.
var errNoDisk = errors.New("no file system can be mounted here, and so no disk be full")

// newDisk makes a disk of a size as tmpfs takes it. Its path is short, for sockets in it.
func newDisk(size string) (*disk, error) {
	dir, err := os.MkdirTemp("/tmp", "pawl-disk-*")
	if err != nil {
		return nil, err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=1777,size="+size); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", errNoDisk, err), os.Remove(dir))
	}
	return &disk{dir}, nil
}

// ballast is the file that fills it.
func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill leaves no room.
func (d *disk) fill() error {
	f, err := os.Create(d.ballast())
	if err != nil {
		return err
	}
	defer f.Close()
	for n := 1 << 20; n > 0; {
		if _, err := f.Write(make([]byte, n)); errors.Is(err, syscall.ENOSPC) {
			n /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}

// empty makes room again.
func (d *disk) empty() error { return os.Remove(d.ballast()) }

// close removes the disk, also from under who still has files there.
func (d *disk) close() error {
	const detach = 2 // MNT_DETACH
	return errors.Join(syscall.Unmount(d.dir, detach), os.Remove(d.dir))
}
