package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"testing"

	"github.com/google/uuid"

	"github.com/pawlq/pawl"
)

// emptyServer has no rows, and fails statements or commits.
type emptyServer struct{ query, commit error }

func (e emptyServer) Connect(context.Context) (driver.Conn, error) { return e, nil }
func (e emptyServer) Driver() driver.Driver                        { return nil }
func (e emptyServer) Prepare(string) (driver.Stmt, error)          { return nil, errors.ErrUnsupported }
func (e emptyServer) Begin() (driver.Tx, error)                    { return nil, errors.ErrUnsupported }
func (e emptyServer) Close() error                                 { return nil }
func (e emptyServer) Columns() []string                            { return nil }
func (e emptyServer) Next([]driver.Value) error                    { return io.EOF }
func (e emptyServer) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if query == "COMMIT" {
		return nil, e.commit
	}
	return driver.RowsAffected(0), nil
}
func (e emptyServer) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return e, e.query
}

// A settle that looks again at jobs that were locked reports them as busy only if
// it is known that this has changed nothing, and then not as lost too.
func TestSettleAgain(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		server     emptyServer
		busy, lost int
		unknown    bool
	}{
		{server: emptyServer{}, lost: 1}, // the job has gone meanwhile
		{server: emptyServer{query: broken}, busy: 1},
		{server: emptyServer{commit: broken}, unknown: true},
	} {
		db := sql.OpenDB(c.server)
		t.Cleanup(func() { db.Close() })
		s := &Store{o: &Options{Prefix: DefaultPrefix}, db: db}
		st := newSettlement([]pawl.Outcome{{Ref: pawl.Ref{ID: uuid.New(), Fence: 1}, Verb: pawl.Ack}})
		st.verdicts[0] = occupied
		err := st.rest(t.Context(), s)
		if c.unknown {
			if isBusy(err) || !errors.Is(err, broken) {
				t.Errorf("%+v: error %v, want that of the commit", c.server, err)
			}
			continue
		}
		busy := new(pawl.BusyError)
		errors.As(err, &busy)
		if len(busy.Refs) != c.busy || len(st.lost()) != c.lost {
			t.Errorf("%+v: error %v, lost %v", c.server, err, st.lost())
		}
	}
}
