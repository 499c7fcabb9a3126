package mysql_test

import (
	"database/sql"
	"errors"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/pawlq/pawl/internal/testserver"
	"github.com/pawlq/pawl/storage/mysql"
)

// Settings under which jobs would be lost, or calls fail, are refused at the start.
func TestSettingsAreRefused(t *testing.T) {
	with := func(settings map[string]string) *sql.DB {
		return openDB(t, testserver.MariaDB(t), 1, func(c *driver.Config) { c.Params = settings })
	}
	for setting, value := range map[string]string{
		"autocommit": "0", "sql_safe_updates": "1", "completion_type": "1", "unique_checks": "0",
		"sql_mode": "'EMPTY_STRING_IS_NULL'", "sql_select_limit": "3",
		"tx_isolation": "'READ-UNCOMMITTED'",
	} {
		s, err := mysql.New(t.Context(), with(map[string]string{setting: value}), nil)
		if !errors.Is(err, mysql.ErrServer) {
			t.Errorf("%s=%s: error %v, want ErrServer", setting, value, err)
		}
		if err == nil {
			s.Close()
		}
	}
	s, err := mysql.New(t.Context(), with(map[string]string{"sql_mode": "'ORACLE'", "autocommit": "1"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
