package main

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver of all systems
)

// openSQLite opens a file for a peer with the driver and the durability of
// pawl: WAL, and a sync at each commit.
func openSQLite(p *Place, connections int) (*sql.DB, error) {
	pragmas := url.Values{"_pragma": {"journal_mode(WAL)", "synchronous(FULL)", "busy_timeout(5000)", "foreign_keys(1)"},
		"_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(p.Dir, "peer.db")+"?"+pragmas.Encode())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	if _, err := db.Exec(businessTable); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// inSQLTx is [TxSystem.InTx] with database/sql.
func inSQLTx(ctx context.Context, db *sql.DB, hold func(), enqueue func(*sql.Tx) error) (time.Time, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := writeBusiness(ctx, tx); err != nil {
		return time.Time{}, err
	}
	if err := enqueue(tx); err != nil {
		return time.Time{}, err
	}
	if hold != nil {
		hold()
	}
	err = tx.Commit()
	return time.Now(), err
}

// businessTable is the table of the program's own, on SQLite.
const businessTable = "CREATE TABLE IF NOT EXISTS business (id INTEGER PRIMARY KEY, note TEXT NOT NULL)"

// writeBusiness writes a row of the program's own.
func writeBusiness(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO business (note) VALUES ('paid')")
	return err
}
