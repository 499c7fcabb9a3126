package main

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pawlq/pawl"
	"github.com/pawlq/pawl/torture/check"
)

// The tables of the program, and triggers that write down each change of a job's
// state, whoever made it. In the audit a job that is not there has state -1, and one
// that is claimed anew while it runs has 30 after 3. PostgreSQL's fresh jobs, which
// are ready or running, have 0.
var setups = map[string][]string{
	"sqlite": {
		"CREATE TABLE torture_order (id BLOB NOT NULL, fence INTEGER NOT NULL) STRICT",
		"CREATE TABLE torture_effect (id BLOB NOT NULL, fence INTEGER NOT NULL) STRICT",
		"CREATE TABLE torture_audit (id BLOB NOT NULL, was INTEGER NOT NULL, now INTEGER NOT NULL) STRICT",
		"CREATE TABLE torture_filler (b BLOB NOT NULL) STRICT",
		`CREATE TRIGGER torture_insert AFTER INSERT ON pawl_job BEGIN
			INSERT INTO torture_audit VALUES (NEW.id, -1, NEW.state); END`,
		`CREATE TRIGGER torture_update AFTER UPDATE ON pawl_job BEGIN
			INSERT INTO torture_audit VALUES (NEW.id, OLD.state,
				CASE WHEN OLD.state = 3 AND NEW.state = 3 AND OLD.fence <> NEW.fence THEN 30 ELSE NEW.state END); END`,
		`CREATE TRIGGER torture_delete AFTER DELETE ON pawl_job BEGIN
			INSERT INTO torture_audit VALUES (OLD.id, OLD.state, -1); END`,
	},
	"postgres": {
		"CREATE TABLE torture_order (id uuid NOT NULL, fence bigint NOT NULL)",
		"CREATE TABLE torture_effect (id uuid NOT NULL, fence bigint NOT NULL)",
		"CREATE TABLE torture_audit (id uuid NOT NULL, was smallint NOT NULL, now smallint NOT NULL, tx xid8 NOT NULL DEFAULT pg_current_xact_id())",
		"CREATE TABLE torture_filler (b text NOT NULL)",
		`CREATE FUNCTION torture_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF TG_OP = 'INSERT' THEN
				INSERT INTO torture_audit (id, was, now) VALUES (NEW.id, -1, NEW.state);
			ELSIF TG_OP = 'DELETE' THEN
				INSERT INTO torture_audit (id, was, now) VALUES (OLD.id, OLD.state, -1);
			ELSE
				INSERT INTO torture_audit (id, was, now) VALUES (NEW.id, OLD.state,
					CASE WHEN OLD.state = 3 AND NEW.state = 3 AND OLD.fence <> NEW.fence THEN 30 ELSE NEW.state END);
			END IF;
			RETURN NULL; END $$`,
		`CREATE TRIGGER torture AFTER INSERT OR UPDATE OR DELETE ON pawl_job FOR EACH ROW EXECUTE FUNCTION torture_note()`,
	},
	"mysql": {
		"CREATE TABLE torture_order (id BINARY(16) NOT NULL, fence BIGINT NOT NULL) ENGINE = InnoDB",
		"CREATE TABLE torture_effect (id BINARY(16) NOT NULL, fence BIGINT NOT NULL) ENGINE = InnoDB",
		"CREATE TABLE torture_audit (n BIGINT AUTO_INCREMENT PRIMARY KEY, id BINARY(16) NOT NULL, was TINYINT NOT NULL, now TINYINT NOT NULL) ENGINE = InnoDB",
		"CREATE TABLE torture_filler (b LONGTEXT NOT NULL) ENGINE = InnoDB",
		`CREATE TRIGGER torture_insert AFTER INSERT ON pawl_job FOR EACH ROW
			INSERT INTO torture_audit (id, was, now) VALUES (NEW.id, -1, NEW.state)`,
		`CREATE TRIGGER torture_update AFTER UPDATE ON pawl_job FOR EACH ROW
			INSERT INTO torture_audit (id, was, now) VALUES (NEW.id, OLD.state,
				IF(OLD.state = 3 AND NEW.state = 3 AND OLD.fence <> NEW.fence, 30, NEW.state))`,
		`CREATE TRIGGER torture_delete AFTER DELETE ON pawl_job FOR EACH ROW
			INSERT INTO torture_audit (id, was, now) VALUES (OLD.id, OLD.state, -1)`,
	},
}

// orphans are queries that count what is left of jobs that are gone.
var orphans = map[string]map[string]string{
	"sqlite": {
		"payloads": "SELECT count(*) FROM pawl_payload WHERE seq NOT IN (SELECT seq FROM pawl_job)",
		"results":  "SELECT count(*) FROM pawl_result WHERE seq NOT IN (SELECT seq FROM pawl_job)",
		"failures": "SELECT count(*) FROM pawl_failure WHERE seq NOT IN (SELECT seq FROM pawl_job)",
		"keys":     "SELECT count(*) FROM pawl_job WHERE held = 1 AND state >= 4",
	},
	"postgres": {
		"leases": "SELECT count(*) FROM pawl_lease l WHERE until IS NOT NULL AND NOT EXISTS (SELECT FROM pawl_job j WHERE j.seq = l.seq)",
		"keys":   "SELECT count(*) FROM pawl_job WHERE held AND state >= 4",
		"claims": "SELECT count(*) FROM pawl_claim c JOIN unnest(c.seqs) s(seq) ON true JOIN pawl_job j ON j.seq = s.seq AND j.state = 0",
	},
	"mysql": {
		"blobs": "SELECT count(*) FROM pawl_blob WHERE id NOT IN (SELECT id FROM pawl_job)",
		"keys":  "SELECT count(*) FROM pawl_key k WHERE NOT EXISTS (SELECT 1 FROM pawl_job j WHERE j.id = k.id AND j.state <= 3)",
	},
}

// legal are the changes of state that can be in this run: nobody kicks completed
// jobs, and no retention ends.
var legal = map[[2]int]bool{
	{-1, 0}: true, {-1, 1}: true, {-1, 2}: true,
	{0, 0}: true, {0, 1}: true, {0, 2}: true, {0, 3}: true, {0, 4}: true, {0, 5}: true, {0, 6}: true, {0, -1}: true,
	{1, 1}: true, {1, 2}: true, {1, 3}: true, {1, 6}: true,
	{2, 2}: true, {2, 3}: true, {2, 1}: true, {2, 6}: true,
	{3, 3}: true, {3, 1}: true, {3, 2}: true, {3, 4}: true, {3, 5}: true, {3, 6}: true, {3, -1}: true,
	{5, 5}: true, {5, 2}: true,
}

// An auditor looks at tables of a SQL storage.
type auditor struct {
	storage string
	s       *store
}

func (a *auditor) prepare(ctx context.Context) error {
	for _, text := range setups[a.storage] {
		if err := a.exec(ctx, text); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return nil
}

func (a *auditor) exec(ctx context.Context, text string) (err error) {
	if a.s.pool != nil {
		_, err = a.s.pool.Exec(ctx, text)
	} else {
		_, err = a.s.db.ExecContext(ctx, text)
	}
	return err
}

// rows calls f with each row of a query.
func (a *auditor) rows(ctx context.Context, text string, f func(scan func(...any) error) error) error {
	if a.s.pool != nil {
		rows, err := a.s.pool.Query(ctx, text)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := f(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	}
	rows, err := a.s.db.QueryContext(ctx, text)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// fill fills in what the tables say.
func (a *auditor) fill(ctx context.Context, in *check.Input) (err error) {
	if in.Orders, err = a.count(ctx, orderTable); err != nil {
		return err
	}
	if in.Effects, err = a.count(ctx, effectTable); err != nil {
		return err
	}
	if err := a.changes(ctx, in); err != nil {
		return err
	}
	for what, query := range orphans[a.storage] {
		n := 0
		if err := a.rows(ctx, query, func(scan func(...any) error) error { return scan(&n) }); err != nil {
			return err
		}
		if n > 0 {
			in.Orphans = append(in.Orphans, fmt.Sprintf("%d %s of jobs that are gone or final", n, what))
		}
	}
	return nil
}

func (a *auditor) count(ctx context.Context, table string) (map[pawl.ID]int, error) {
	found := map[pawl.ID]int{}
	err := a.rows(ctx, "SELECT id FROM "+table, func(scan func(...any) error) error {
		id, err := scanID(scan, a.s.pool != nil)
		found[id]++
		return err
	})
	return found, err
}

func scanID(scan func(...any) error, native bool) (id pawl.ID, err error) {
	if native {
		return id, scan(&id)
	}
	var raw sql.RawBytes
	if err := scan(&raw); err != nil {
		return id, err
	}
	copy(id[:], raw)
	return id, nil
}

// stays leaves out rows that an enqueue has inserted and deleted in its own transaction, which it
// does to give them places behind one whose key came free.
const stays = ` WHERE ctid NOT IN (SELECT a.ctid FROM torture_audit a JOIN torture_audit b USING (id, tx)
	WHERE a.was IN (1, 2) AND a.now = -1 AND b.was = -1)`

func (a *auditor) changes(ctx context.Context, in *check.Input) error {
	text := "SELECT was, now, count(*) FROM torture_audit"
	if a.storage == "postgres" {
		text += stays
	}
	err := a.rows(ctx, text+" GROUP BY was, now", func(scan func(...any) error) error {
		var was, now int
		var n int64
		if err := scan(&was, &now, &n); err != nil {
			return err
		}
		in.Changes += n
		if !legal[[2]int{was, now}] {
			in.Illegal = append(in.Illegal, fmt.Sprintf("%d rows went from state %d to %d", n, was, now))
		}
		return nil
	})
	if err != nil {
		return err
	}
	// A job of no retention leaves by its ack.
	twice := "SELECT id FROM torture_audit WHERE now = 4 AND was <> 4 GROUP BY id HAVING count(*) > 1"
	return a.rows(ctx, twice, func(scan func(...any) error) error {
		id, err := scanID(scan, a.s.pool != nil)
		in.Twice = append(in.Twice, id)
		return err
	})
}

// tables reports whether the storage keeps its jobs in tables.
func (a *auditor) tables() bool { return setups[a.storage] != nil }
