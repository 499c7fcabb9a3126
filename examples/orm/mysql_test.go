package orm

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
	"github.com/pawlq/pawl/task"
)

// under is what statements of pawl go through in a transaction of gorm on MySQL.
// No two of them have the same text, so gorm must not prepare and keep them.
func under(tx *gorm.DB) mysql.Querier {
	if prepares, ok := tx.Statement.ConnPool.(*gorm.PreparedStmtTX); ok {
		return prepares.Tx
	}
	return tx.Statement.ConnPool
}

// shop is a program with users and jobs in one database of MariaDB.
type shop struct {
	t     *testing.T
	store *mysql.Store
	queue *pawl.Queue
	db    *gorm.DB
}

func newShop(t *testing.T, prepare bool) *shop {
	t.Helper()
	server, name := testserver.MariaDB(t), schemaName(t)
	if err := server.Exec(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	raw, err := sql.Open("mysql", server.DSN(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	store, err := mysql.New(t.Context(), raw, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: raw}), &gorm.Config{PrepareStmt: prepare})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Exec("CREATE TABLE users (name VARCHAR(50) PRIMARY KEY)").Error; err != nil {
		t.Fatal(err)
	}
	return &shop{t, store, pawl.New(store, nil), db}
}

// sign inserts a user and enqueues the welcome in the same transaction, and then
// returns fail.
func (s *shop) sign(user string, fail error) error {
	return s.db.WithContext(s.t.Context()).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&gormUser{user}).Error; err != nil {
			return err
		}
		if _, err := s.queue.WithTx(s.store.SQLTx(under(tx))).Enqueue(s.t.Context(), task.New(Welcome{user})); err != nil {
			return err
		}
		return fail
	})
}

// greet acks a job in the transaction that has its effect: both or neither.
func (s *shop) greet(job *pawl.Job, fail error) error {
	return s.db.WithContext(s.t.Context()).Transaction(func(tx *gorm.DB) error {
		if err := tx.Create(&gormUser{"greeted"}).Error; err != nil {
			return err
		}
		if err := s.queue.WithTx(s.store.SQLTx(under(tx))).Ack(s.t.Context(), job, nil); err != nil {
			return err
		}
		return fail
	})
}

func (s *shop) wantUsers(want ...string) {
	s.t.Helper()
	var users []string
	if err := s.db.Model(&gormUser{}).Order("name").Pluck("name", &users).Error; err != nil {
		s.t.Fatal(err)
	}
	if len(users) != len(want) || users[0] != want[0] || users[len(users)-1] != want[len(want)-1] {
		s.t.Errorf("users %q, want %q", users, want)
	}
}

func TestGormOnMySQL(t *testing.T) {
	for name, prepare := range map[string]bool{"plain": false, "prepared statements": true} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t, prepare)
			if err := s.sign("gone", errChanged); !errors.Is(err, errChanged) {
				t.Fatalf("the sign-up that fails: %v", err)
			}
			if err := s.sign("here", nil); err != nil {
				t.Fatal(err)
			}
			s.wantUsers("here")
			claimed, err := s.queue.ClaimBatch(t.Context(), pawl.ClaimSpec{
				Queues: []pawl.QueueAsk{{Queue: "default", Max: 10}}, Max: 10, Lease: time.Minute, Worker: "w",
			})
			if err != nil || len(claimed.Jobs) != 1 || string(claimed.Jobs[0].Payload) != `{"User":"here"}` {
				t.Fatalf("claimed %v, error %v; want the welcome of here", claimed.Jobs, err)
			}
			job := claimed.Jobs[0]
			if err := s.greet(job, errChanged); !errors.Is(err, errChanged) {
				t.Fatalf("the greeting that fails: %v", err)
			}
			s.wantUsers("here")
			if err := s.greet(job, nil); err != nil {
				t.Fatal(err)
			}
			s.wantUsers("greeted", "here")
			if j, err := s.queue.Get(t.Context(), "", job.ID); err != nil || j.State != pawl.Completed {
				t.Errorf("job %+v, error %v; want it completed", j, err)
			}
		})
	}
}
