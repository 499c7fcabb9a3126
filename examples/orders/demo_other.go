//go:build !linux

package main

import "errors"

func demo(func(dsn string) error) error {
	return errors.New("-demo starts its server on Linux only; name one with -dsn")
}
