package main

import (
	"errors"

	"github.com/pawlq/pawl/internal/testserver"
)

// demo runs f with a private server whose commits reach the disk.
func demo(f func(dsn string) error) error {
	server, err := testserver.StartPostgres(&testserver.PostgresOptions{Fsync: true})
	if err != nil {
		return err
	}
	return errors.Join(f(server.DSN("")), server.Stop())
}
