package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/storage/sqlite"
	"github.com/pawlq/pawl/task"
)

const (
	accounts = 10
	opening  = 1000 // what each account begins with
)

// entries has no unique constraint that would hide a transfer made twice.
const schema = `
CREATE TABLE IF NOT EXISTS accounts (
	id      INTEGER PRIMARY KEY,
	balance INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
	id        INTEGER PRIMARY KEY,
	job       TEXT    NOT NULL,
	debited   INTEGER NOT NULL,
	credited  INTEGER NOT NULL,
	amount    INTEGER NOT NULL
);`

// Transfer moves an amount from one account to another.
type Transfer struct {
	From, To int
	Amount   int
}

func (Transfer) Kind() string { return "transfer" }

// bank runs transfers.
type bank struct {
	store   *sqlite.Store
	queue   *pawl.Queue
	trouble *trouble
}

// transfer does its work and acks its job in one transaction. Until the commit
// neither has happened, after it both have: however often the job runs, and
// wherever a run is cut off, the money moves once.
func (b *bank) transfer(ctx context.Context, job *task.Job[Transfer]) error {
	b.trouble.at("begin")
	err := b.store.InTx(ctx, func(tx *sql.Tx, w pawl.Writer) error {
		t := job.Args
		if err := change(ctx, tx, t.From, -t.Amount); err != nil {
			return err
		}
		b.trouble.at("between debit and credit")
		if err := change(ctx, tx, t.To, t.Amount); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO entries (job, debited, credited, amount) VALUES (?, ?, ?, ?)`,
			job.ID.String(), t.From, t.To, t.Amount); err != nil {
			return err
		}
		b.trouble.at("between effect and ack")
		if err := b.queue.WithTx(w).Ack(ctx, job.Job, nil); err != nil {
			return err
		}
		b.trouble.at("between ack and commit")
		return nil
	})
	b.trouble.at("after the commit")
	return err
}

func change(ctx context.Context, tx *sql.Tx, account, by int) error {
	_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + ? WHERE id = ?`, by, account)
	return err
}

// openAccounts fills an empty bank, and refuses one that is not.
func openAccounts(ctx context.Context, store *sqlite.Store) error {
	return store.InTx(ctx, func(tx *sql.Tx, _ pawl.Writer) error {
		if _, err := tx.ExecContext(ctx, schema); err != nil {
			return err
		}
		for id := range accounts {
			if _, err := tx.ExecContext(ctx, `INSERT INTO accounts (id, balance) VALUES (?, ?)`, id, opening); err != nil {
				return fmt.Errorf("open account %d in a new file: %w", id, err)
			}
		}
		return nil
	})
}

// audit counts the entries and checks them against jobs and balances.
func audit(ctx context.Context, store *sqlite.Store, jobs int) (entries int, err error) {
	var distinct, wrong int
	row := func(to *int, query string) {
		if err == nil {
			err = store.DB().QueryRowContext(ctx, query).Scan(to)
		}
	}
	row(&entries, `SELECT count(*) FROM entries`)
	row(&distinct, `SELECT count(DISTINCT job) FROM entries`)
	row(&wrong, fmt.Sprintf(`
		SELECT count(*) FROM accounts a WHERE balance <> %d
			+ (SELECT coalesce(sum(amount), 0) FROM entries WHERE credited = a.id)
			- (SELECT coalesce(sum(amount), 0) FROM entries WHERE debited = a.id)`, opening))
	switch {
	case err != nil:
		return 0, err
	case entries != jobs || distinct != jobs:
		return entries, fmt.Errorf("%d entries of %d jobs for %d jobs", entries, distinct, jobs)
	case wrong > 0:
		return entries, fmt.Errorf("%d balances do not match the entries", wrong)
	}
	return entries, nil
}

var errUnfinished = errors.New("not all jobs are completed")
