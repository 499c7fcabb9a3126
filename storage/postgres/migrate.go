package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pawlq/pawl"
)

//go:embed migrations/*.sql
var migrations embed.FS

// minServer is the oldest server version, as server_version_num.
const minServer = 130000

// Migrations returns the SQL files that make the schema, for those who run
// their migrations with another tool: 0001_init.sql and so on, each to be run
// once, in order of name: in one transaction, or, if the name ends in
// _concurrently.sql, statement by statement outside of any. Each records its
// version. They use [DefaultSchema] and [DefaultPrefix]; for others, replace those in the
// text.
func Migrations() fs.FS {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		panic(err) // the folder is part of the program
	}
	return sub
}

// Migrate brings the tables in the database of pool to the version of this
// package, as [New] does by default. Any number of processes may call it at
// once.
func Migrate(ctx context.Context, pool *pgxpool.Pool, o *Options) error {
	f, err := o.filled()
	if err != nil {
		return err
	}
	return explain("migrate", retry(ctx, func() error { return migrate(ctx, pool, f, Migrations()) }))
}

// MigrateTx does it in a transaction of the caller, who should keep it short:
// others that migrate wait for its end, and where jobs are already kept, indexes
// are built while nobody can write. It waits up to ten seconds for others, then
// fails with [ErrMigrating]: they may wait for this transaction.
func MigrateTx(ctx context.Context, tx pgx.Tx, o *Options) error {
	f, err := o.filled()
	if err != nil {
		return err
	}
	return explain("migrate", migrateTx(ctx, tx, f, Migrations()))
}

// queryer is a pool, a connection or a transaction.
type queryer interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func migrate(ctx context.Context, pool *pgxpool.Pool, o *Options, steps fs.FS) error {
	want, err := latest(steps)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		if have, err := schemaVersion(ctx, pool, o); err != nil || have == want {
			return err // also for a role that can only read and write
		}
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			// Only ctx says how long it may take.
			const patient = "SELECT set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true)"
			if _, err := tx.Exec(ctx, patient); err != nil {
				return err
			}
			if err := tryLockSchema(ctx, tx, o); err != nil {
				return err
			}
			m := &migration{ctx: ctx, o: o, steps: steps, tx: tx}
			return m.next(pool)
		})
		// Wait outside of the transaction: an index that is built concurrently
		// waits for each that it has once seen with a snapshot.
		if errors.Is(err, ErrMigrating) {
			err = pause(ctx, try)
		}
		if err != nil {
			return err
		}
	}
}

// ErrMigrating is that another process brings the tables up to date.
var ErrMigrating = errors.New("pawl/postgres: another process is migrating the tables")

// tryLockSchema lets one process in at a time. It does not use the extended
// protocol, whose last statement keeps its snapshot until the next one of the
// transaction; the one inside would wait for that.
func tryLockSchema(ctx context.Context, tx pgx.Tx, o *Options) error {
	var got bool
	sql := "SELECT pg_try_advisory_xact_lock(" + strconv.FormatInt(nameHash(o), 10) + ")"
	if err := tx.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol).Scan(&got); err != nil || got {
		return err
	}
	return ErrMigrating
}

// migrateTxWait is how long a caller's transaction waits for its turn.
const migrateTxWait = 10 * time.Second

// lockSchemaTx waits for its turn inside a caller's transaction.
func lockSchemaTx(ctx context.Context, tx pgx.Tx, o *Options) error {
	for begun, try := time.Now(), 1; ; try++ {
		err := tryLockSchema(ctx, tx, o)
		if !errors.Is(err, ErrMigrating) || time.Since(begun) > migrateTxWait {
			return err
		}
		if err := pause(ctx, try); err != nil {
			return err
		}
	}
}

// migrateTx runs the steps that the schema lacks in one transaction.
func migrateTx(ctx context.Context, tx pgx.Tx, o *Options, steps fs.FS) error {
	if err := lockSchemaTx(ctx, tx, o); err != nil {
		return err
	}
	m := &migration{ctx: ctx, o: o, steps: steps, tx: tx}
	_, names, err := m.missing()
	if err != nil {
		return err
	}
	return m.within(names)
}

// migration runs steps under the lock of a transaction.
type migration struct {
	ctx   context.Context
	o     *Options
	steps fs.FS
	tx    pgx.Tx
}

// missing returns the version and the steps that the schema lacks.
func (m *migration) missing() (have int, names []string, err error) {
	want, err := latest(m.steps)
	if err != nil {
		return 0, nil, err
	}
	if have, err = schemaVersion(m.ctx, m.tx, m.o); err != nil {
		return 0, nil, err
	}
	if have > want {
		return 0, nil, &pawl.SchemaError{Have: have, Want: want}
	}
	names, err = fs.Glob(m.steps, "*.sql")
	if err != nil {
		return 0, nil, err
	}
	return have, names[have:], nil
}

// outside reports whether a step is one to run outside a transaction.
func outside(name string) bool { return strings.HasSuffix(name, "_concurrently.sql") }

// next runs the steps up to the next one that must run outside the transaction,
// or that one. Tables that are new are empty, and need none of that.
func (m *migration) next(pool *pgxpool.Pool) error {
	have, names, err := m.missing()
	if err != nil || len(names) == 0 {
		return err
	}
	if have > 0 && outside(names[0]) {
		return m.apart(pool, names[0])
	}
	if i := slices.IndexFunc(names, outside); have > 0 && i > 0 {
		names = names[:i]
	}
	return m.within(names)
}

// within runs steps in the transaction.
func (m *migration) within(names []string) error {
	for _, name := range names {
		text, err := fs.ReadFile(m.steps, name)
		if err != nil {
			return err
		}
		sql := named(string(text), m.o)
		if outside(name) {
			sql = strings.ReplaceAll(sql, " CONCURRENTLY", "")
		}
		// The simple protocol takes several statements at once.
		if _, err := m.tx.Exec(m.ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// apart runs the statements of a step one by one, on a connection of its own: the
// pool may have no other than that of the transaction.
func (m *migration) apart(pool *pgxpool.Pool, name string) error {
	text, err := fs.ReadFile(m.steps, name)
	if err != nil {
		return err
	}
	conn, err := connect(m.ctx, pool)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.ctx), spoilTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	// Ends the last statement, whose snapshot the build would wait for.
	if _, err := m.tx.Exec(m.ctx, "SELECT 1", pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	all := append([]string{"SET statement_timeout = 0"}, strings.Split(named(string(text), m.o), ";\n")...)
	for _, sql := range append(all, "RESET statement_timeout") {
		if strings.TrimSpace(sql) == "" {
			continue
		}
		if _, err := conn.Exec(m.ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// latest is the version that the steps lead to: the number that the last one's
// name begins with, which is also how many there are.
func latest(steps fs.FS) (int, error) {
	names, err := fs.Glob(steps, "*.sql")
	if err != nil {
		return 0, err
	}
	for i, name := range names {
		number, _, _ := strings.Cut(name, "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			return 0, fmt.Errorf("migration %q is not number %d", name, i+1)
		}
	}
	return len(names), nil
}

// schemaVersion reads the version of the schema; 0 if there is none. It looks
// for the table first, since a statement that fails ends its transaction, and in
// the catalog, since to_regclass can miss what was committed a moment ago.
func schemaVersion(ctx context.Context, q queryer, o *Options) (version int, err error) {
	var there bool
	err = q.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_class c
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1::text AND c.relname = $2::text)`, o.Schema, o.Prefix+"meta").Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRow(ctx, named("SELECT version FROM public.pawl_meta", o)).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return version, err
}

// checkVersion fails unless the schema is the one that this package needs.
func checkVersion(ctx context.Context, q queryer, o *Options) error {
	want, err := latest(Migrations())
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, q, o)
	if err == nil && have != want {
		err = &pawl.SchemaError{Have: have, Want: want}
	}
	return err
}

// checkServer fails if the server can't be used and warns if its commits are
// not durable.
func (s *Store) checkServer(ctx context.Context) error {
	var (
		version           int
		standby, readOnly bool
		durable           string
		client, server    string
	)
	err := s.pool.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
		current_setting('default_transaction_read_only')::bool, current_setting('synchronous_commit'),
		current_setting('client_encoding'), current_setting('server_encoding')`,
	).Scan(&version, &standby, &readOnly, &durable, &client, &server)
	switch {
	case err != nil:
		return err
	case version < minServer:
		return fmt.Errorf("%w: version %d is older than 13", ErrServer, version/10000)
	case standby:
		return fmt.Errorf("%w: it is a standby", ErrServer)
	case readOnly:
		return fmt.Errorf("%w: default_transaction_read_only is on", ErrServer)
	case server != "UTF8":
		return fmt.Errorf("%w: the encoding of the database is %s, not UTF8", ErrServer, server)
	case client != "UTF8":
		return fmt.Errorf("%w: client_encoding is %s, not UTF8", ErrServer, client)
	case durable == "off":
		s.o.Logger.WarnContext(ctx, "pawl/postgres: synchronous_commit is off: a crash of the server can undo commits")
	}
	return nil
}

// named puts schema and prefix in the place of the default ones. Both have been
// checked to need no quoting beyond the quotes.
func named(text string, o *Options) string {
	return strings.NewReplacer(
		DefaultSchema+"."+DefaultPrefix, `"`+o.Schema+`".`+o.Prefix,
		DefaultPrefix, o.Prefix,
	).Replace(text)
}

// nameHash tells the tables of one Store from those of others in the same
// database.
func nameHash(o *Options) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("pawl " + o.Schema + "." + o.Prefix)) // never fails
	return int64(h.Sum64())
}
