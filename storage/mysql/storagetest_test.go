package mysql_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	driver "github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/storage/storagetest"
)

func TestMain(m *testing.M) {
	code := testserver.MainMariaDB(m)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func TestStorage(t *testing.T) {
	storagetest.Run(t, harness(t, nil))
}

// The contract holds on MySQL's way too, as far as MariaDB can show that.
func TestStorageSlowWay(t *testing.T) {
	h := harness(t, nil)
	h.Groups = []string{"rules", "tx", "concurrent", "model"}
	open, reopen := h.Open, h.Reopen
	h.Open = func(t testing.TB, clock func() time.Time) pawl.Storage {
		s := open(t, clock)
		s.(*mysql.Store).SlowWay()
		return s
	}
	h.Reopen = func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
		other := reopen(t, s, clock)
		other.(*mysql.Store).SlowWay()
		return other
	}
	storagetest.Run(t, h)
}

// harness runs the contract on tables of our own, over connections that edit has
// changed.
func harness(t testing.TB, edit func(*driver.Config)) storagetest.Harness {
	t.Helper()
	db := openDB(t, testserver.MariaDB(t), 20, edit)
	used := &used{db: db}
	return storagetest.Harness{
		Open: func(t testing.TB, clock func() time.Time) pawl.Storage {
			return open(t, db, &mysql.Options{Prefix: used.take(t), Clock: clock})
		},
		Reopen: func(t testing.TB, s pawl.Storage, clock func() time.Time) pawl.Storage {
			return open(t, db, &mysql.Options{Prefix: s.(*mysql.Store).Prefix(), Clock: clock})
		},
		Begin: begin,
	}
}

var databases struct {
	sync.Mutex
	n int
}

// openDB makes a database on a server and opens it, with at most n connections.
// It goes with the server.
func openDB(t testing.TB, server *testserver.MariaDBServer, n int, edit func(*driver.Config)) *sql.DB {
	t.Helper()
	databases.Lock()
	databases.n++
	name := fmt.Sprintf("test_%d", databases.n)
	databases.Unlock()
	if err := server.Exec(context.Background(), "CREATE DATABASE IF NOT EXISTS "+name); err != nil {
		t.Fatal(err)
	}
	return connect(t, server, name, n, edit)
}

func connect(t testing.TB, server *testserver.MariaDBServer, name string, n int, edit func(*driver.Config)) *sql.DB {
	t.Helper()
	config := server.Config(name)
	if edit != nil {
		edit(config)
	}
	connector, err := driver.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// used are prefixes whose tables are emptied and used again: there are hundreds
// of cases, and to make the tables takes longer than most of them.
type used struct {
	db *sql.DB

	mu   sync.Mutex
	n    int
	free []string
}

// take returns a prefix of empty tables, or of none, for one test.
func (u *used) take(t testing.TB) string {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	last := len(u.free) - 1
	name := ""
	if last >= 0 {
		name = u.free[last]
		u.free = u.free[:last]
	} else {
		u.n++
		name = fmt.Sprintf("t%d_", u.n)
	}
	t.Cleanup(func() { u.giveBack(t, name) })
	return name
}

func (u *used) giveBack(t testing.TB, prefix string) {
	t.Helper()
	for _, table := range []string{"job", "blob", "key", "queue"} {
		if _, err := u.db.Exec("DELETE FROM " + prefix + table); err != nil {
			t.Error(err)
			return
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.free = append(u.free, prefix)
}

func open(t testing.TB, db *sql.DB, o *mysql.Options) *mysql.Store {
	t.Helper()
	s, err := mysql.New(context.Background(), db, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func begin(t testing.TB, s pawl.Storage) (w pawl.Writer, commit, rollback func() error) {
	store := s.(*mysql.Store)
	tx, err := store.DB().BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tx.Rollback() })
	return store.Tx(tx), tx.Commit, tx.Rollback
}
