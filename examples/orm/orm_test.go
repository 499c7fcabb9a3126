package orm

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/postgres"
	"github.com/pawlq/pawl/task"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// Welcome greets a user who has signed up.
type Welcome struct{ User string }

func (Welcome) Kind() string { return "welcome" }

// errChanged makes a sign-up roll back.
var errChanged = errors.New("changed their mind")

// app is a program with users and jobs in one database.
type app struct {
	store *postgres.Store
	queue *pawl.Queue
}

// signUp inserts a user, enqueues the welcome in the same transaction, and then
// returns fail.
type signUp func(user string, fail error) error

func TestDatabaseSQL(t *testing.T) {
	for _, driver := range []string{"pgx", "postgres"} { // the latter is lib/pq
		t.Run(driver, func(t *testing.T) {
			a, db := newApp(t, driver)
			a.check(t, func(user string, fail error) error {
				tx, err := db.BeginTx(t.Context(), nil)
				if err != nil {
					return err
				}
				defer tx.Rollback() // does nothing after the commit
				if _, err := tx.ExecContext(t.Context(), "INSERT INTO users (name) VALUES ($1)", user); err != nil {
					return err
				}
				if _, err := a.queue.WithTx(a.store.SQLTx(tx)).Enqueue(t.Context(), task.New(Welcome{user})); err != nil {
					return err
				}
				if fail != nil {
					return fail
				}
				return tx.Commit()
			})
		})
	}
}

func TestSqlx(t *testing.T) {
	a, raw := newApp(t, "postgres")
	db := sqlx.NewDb(raw, "postgres")
	a.check(t, func(user string, fail error) error {
		tx, err := db.BeginTxx(t.Context(), nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after the commit
		args := map[string]any{"name": user}
		if _, err := tx.NamedExecContext(t.Context(), "INSERT INTO users (name) VALUES (:name)", args); err != nil {
			return err
		}
		if _, err := a.queue.WithTx(a.store.SQLTx(tx)).Enqueue(t.Context(), task.New(Welcome{user})); err != nil {
			return err
		}
		if fail != nil {
			return fail
		}
		return tx.Commit()
	})
}

type gormUser struct{ Name string }

func (gormUser) TableName() string { return "users" }

func TestGorm(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare bool
	}{{"plain", false}, {"prepared statements", true}} {
		t.Run(c.name, func(t *testing.T) {
			a, raw := newApp(t, "pgx")
			db, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: raw}), &gorm.Config{PrepareStmt: c.prepare})
			if err != nil {
				t.Fatal(err)
			}
			a.check(t, func(user string, fail error) error {
				return db.WithContext(t.Context()).Transaction(func(tx *gorm.DB) error {
					if err := tx.Create(&gormUser{user}).Error; err != nil {
						return err
					}
					w := a.store.SQLTx(tx.Statement.ConnPool)
					if _, err := a.queue.WithTx(w).Enqueue(t.Context(), task.New(Welcome{user})); err != nil {
						return err
					}
					return fail
				})
			})
		})
	}
}

type bunUser struct {
	bun.BaseModel `bun:"table:users"`
	Name          string
}

func TestBun(t *testing.T) {
	a, raw := newApp(t, "pgx")
	db := bun.NewDB(raw, pgdialect.New())
	a.check(t, func(user string, fail error) error {
		return db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			if _, err := tx.NewInsert().Model(&bunUser{Name: user}).Exec(ctx); err != nil {
				return err
			}
			// tx itself would look for its own placeholders in statements.
			if _, err := a.queue.WithTx(a.store.SQLTx(tx.Tx)).Enqueue(ctx, task.New(Welcome{user})); err != nil {
				return err
			}
			return fail
		})
	})
}

func TestEnt(t *testing.T) {
	a, raw := newApp(t, "pgx")
	driver := entsql.OpenDB(dialect.Postgres, raw)
	a.check(t, func(user string, fail error) error {
		tx, err := driver.Tx(t.Context())
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after the commit
		insert, args := entsql.Dialect(dialect.Postgres).Insert("users").Columns("name").Values(user).Query()
		if err := tx.Exec(t.Context(), insert, args, nil); err != nil {
			return err
		}
		w := a.store.SQLTx(tx.(*entsql.Tx))
		if _, err := a.queue.WithTx(w).Enqueue(t.Context(), task.New(Welcome{user})); err != nil {
			return err
		}
		if fail != nil {
			return fail
		}
		return tx.Commit()
	})
}

// newApp makes the tables in a schema of the test's own, and opens it with a
// driver of database/sql.
func newApp(t *testing.T, driver string) (*app, *sql.DB) {
	t.Helper()
	dsn := testserver.Postgres(t).DSN("") + " search_path=" + newSchema(t)
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), "CREATE TABLE users (name text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(t.Context(), pool, &postgres.Options{Schema: schemaName(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &app{store, pawl.New(store, nil)}, db
}

// check signs up two users, one of whom is rolled back, and expects one user
// and the one job.
func (a *app) check(t *testing.T, sign signUp) {
	t.Helper()
	if err := sign("gone", errChanged); !errors.Is(err, errChanged) {
		t.Fatalf("the sign-up that fails: %v", err)
	}
	if err := sign("here", nil); err != nil {
		t.Fatal(err)
	}
	var users string
	if err := a.store.Pool().QueryRow(t.Context(), "SELECT string_agg(name, ' ') FROM users").Scan(&users); err != nil {
		t.Fatal(err)
	}
	if users != "here" {
		t.Errorf("users %q, want here", users)
	}
	var jobs []string
	page, err := a.queue.List(t.Context(), pawl.ListSpec{Limit: 10, Payloads: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range page.Jobs {
		jobs = append(jobs, string(j.Payload))
	}
	if len(jobs) != 1 || jobs[0] != `{"User":"here"}` {
		t.Errorf("jobs %q, want the welcome of here", jobs)
	}
}

// schemaName is that of a test.
func schemaName(t *testing.T) string {
	name := []byte("t_")
	for _, c := range []byte(t.Name()) {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c < 'a' || c > 'z' {
			c = '_'
		}
		name = append(name, c)
	}
	return string(name)
}

func newSchema(t *testing.T) string {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testserver.Postgres(t).DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+schemaName(t)); err != nil {
		t.Fatal(err)
	}
	return schemaName(t)
}
