package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/pawlq/pawl"
)

// checkServer refuses servers that are too old or take no writes, and warns of
// commits that are not durable.
func (s *Store) checkServer(ctx context.Context) error {
	var (
		version  string
		readOnly string // 0 or 1; newer servers have more levels
		flush    int
		packet   int
		innodb   bool
	)
	err := retry(ctx, func() error {
		return s.db.QueryRowContext(ctx, `SELECT VERSION(), CAST(@@global.read_only AS CHAR), @@innodb_flush_log_at_trx_commit,
			@@max_allowed_packet, @@innodb_read_only`).Scan(&version, &readOnly, &flush, &packet, &innodb)
	})
	if err != nil {
		return err
	}
	if !isSupported(version) {
		return fmt.Errorf("%w: version %s, need MariaDB 10.6 or MySQL 8.0", ErrServer, version)
	}
	s.mariaDB = strings.Contains(version, "MariaDB")
	if err := s.checkSession(ctx); err != nil {
		return err
	}
	if innodb {
		return fmt.Errorf("%w: innodb_read_only is set", ErrServer)
	}
	if packet < 2*maxText {
		return fmt.Errorf("%w: max_allowed_packet is %d, need %d", ErrServer, packet, 2*maxText)
	}
	if readOnly != "0" && !strings.EqualFold(readOnly, "OFF") {
		// Some users may write all the same.
		s.o.Logger.Warn("pawl/mysql: the server is read_only", "version", version)
	}
	if flush != 1 {
		s.o.Logger.Warn("pawl/mysql: a crash of the server can undo the last commits", "innodb_flush_log_at_trx_commit", flush)
	}
	return nil
}

// checkSession refuses settings under which statements mean something else than
// what they say. A connection has them from the server's defaults and the DSN; that
// a program changes them later, or on one connection only, is not seen.
func (s *Store) checkSession(ctx context.Context) error {
	level := "@@transaction_isolation"
	if s.mariaDB {
		level = "@@tx_isolation" // the only name that all versions have
	}
	needs := [...]struct{ sql, says string }{
		{level + " <> 'READ-UNCOMMITTED'", "an isolation level above READ UNCOMMITTED"},
		{"@@autocommit = 1", "autocommit=1"},
		{"@@sql_safe_updates = 0", "sql_safe_updates=0"},
		{"@@completion_type = 'NO_CHAIN'", "completion_type=NO_CHAIN"},
		{"@@unique_checks = 1", "unique_checks=1"},
		{"@@sql_mode NOT LIKE '%EMPTY_STRING_IS_NULL%'", "no EMPTY_STRING_IS_NULL in sql_mode"},
		{"@@sql_select_limit >= " + leastSelectLimit, "a sql_select_limit of at least " + leastSelectLimit},
	}
	var met [len(needs)]bool
	query, into := "SELECT ", make([]any, len(needs))
	for i, need := range needs {
		query, into[i] = query+need.sql+", ", &met[i]
	}
	query = strings.TrimSuffix(query, ", ")
	err := retry(ctx, func() error { return s.db.QueryRowContext(ctx, query).Scan(into...) })
	if err != nil {
		return err
	}
	for i, need := range needs {
		if !met[i] {
			return fmt.Errorf("%w: its connections need %s", ErrServer, need.says)
		}
	}
	return nil
}

// leastSelectLimit is more than the rows of any statement that reads.
const leastSelectLimit = "10000"

// isSupported reads versions like "8.0.36" and "10.11.6-MariaDB".
func isSupported(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 3 {
		return false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return false
	}
	minor, err := strconv.Atoi(parts[1])
	if err != nil {
		return false
	}
	if strings.Contains(version, "MariaDB") {
		return major > 10 || major == 10 && minor >= 6
	}
	return major >= 8
}

// checkVersion fails unless the schema is of this package's version.
func checkVersion(ctx context.Context, db Querier, prefix string) error {
	want, err := latest(Migrations())
	if err != nil {
		return err
	}
	have, err := schemaVersion(ctx, db, prefix)
	if err == nil && have != want {
		err = &pawl.SchemaError{Have: have, Want: want}
	}
	return err
}

// schemaVersion reads the version of the schema; 0 if there is none.
func schemaVersion(ctx context.Context, db Querier, prefix string) (version int, err error) {
	rows, err := db.QueryContext(ctx, "SELECT version FROM "+prefix+"meta WHERE one = 1")
	if code(err) == codeNoTable {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	if rows.Next() {
		err = rows.Scan(&version)
	}
	if err == nil {
		err = rows.Err()
	}
	return version, err
}

var _ Querier = (*sql.DB)(nil)
