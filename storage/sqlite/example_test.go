package sqlite_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
)

// A row of the program and the job that belongs to it are stored together, or
// not at all.
func ExampleStore_InTx() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "pawl")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(ctx, filepath.Join(dir, "app.db"), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	if _, err := store.DB().ExecContext(ctx, "CREATE TABLE users (name TEXT)"); err != nil {
		fmt.Println(err)
		return
	}

	q := pawl.New(store, nil)
	err = store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO users VALUES ('ada')"); err != nil {
			return err
		}
		_, err := q.WithTx(w).Enqueue(ctx, &pawl.Request{Kind: "welcome", Payload: []byte("ada")})
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	stats, err := store.Count(ctx)
	fmt.Println(stats[0].Queue, stats[0].Ready, err)
	// Output: default 1 <nil>
}

// A program that has a database already, opened with the settings that its own
// statements need beside a Store.
func ExampleNew() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "pawl")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	const settings = "?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=synchronous(FULL)"
	db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "app.db"))+settings)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	store, err := sqlite.New(ctx, db, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	receipt, err := pawl.New(store, nil).Enqueue(ctx, &pawl.Request{Kind: "welcome"})
	fmt.Println(receipt.Status, err)
	// Output: stored <nil>
}
