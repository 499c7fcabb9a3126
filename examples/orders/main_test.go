package main

import (
	"bytes"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pawlq/pawl/internal/testserver"
)

// TestMain lets the test binary be a process that works, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-work" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestReconciles(t *testing.T) {
	server := testserver.NewPostgres(t, nil)
	var out bytes.Buffer
	err := run(t.Context(), []string{
		"-dsn", server.DSN(""), "-load", "300", "-rollback", "0.2", "-kills", "3", "-workers", "2", "-slots", "4", "-slow", "20ms",
	}, &out, t.Output())
	t.Logf("\n%s", &out)
	if err != nil {
		t.Fatal(err)
	}
	rows := rowsOf(t, out.String())
	if rows["requests"] != 300 || rows["placed"]+rows["rolled-back"] != 300 || rows["rolled-back"] == 0 {
		t.Errorf("got %v, want 300 requests, some of them rolled back", rows)
	}
	if n := rows["placed"]; rows["orders"] != n || rows["invoices"] != n || rows["notifications"] != n || rows["ghosts"] != 0 {
		t.Errorf("got %v, want as many orders, invoices and notifications as were placed", rows)
	}
	if rows["kills"] != 3 || rows["rescued"] == 0 {
		t.Errorf("got %v, want 3 kills in the middle of work", rows)
	}
}

// TestOff finds each sum that is off.
func TestOff(t *testing.T) {
	c := config{load: 3, kills: 1}
	right := func() *report {
		r := newReport([]sent{{}, {}, {order: order{Card: noMoney}}})
		r.orders, r.invoices, r.notifications = count{2, 2}, count{2, 2}, count{2, 2}
		r.completed, r.kills = 4, 1
		return r
	}
	if err := right().check(c); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*report){
		"answers":                   func(r *report) { r.rolledBack = nil },
		"3 orders,":                 func(r *report) { r.orders.rows++ },
		"3 invoices":                func(r *report) { r.invoices.rows++ },
		"orders with invoices":      func(r *report) { r.invoices.orders-- },
		"1 notifications":           func(r *report) { r.notifications.rows-- },
		"orders with notifications": func(r *report) { r.notifications.orders-- },
		"1 rows of orders":          func(r *report) { r.ghosts++ },
		"1 jobs of orders":          func(r *report) { r.ghostJobs++ },
		"completed jobs":            func(r *report) { r.completed-- },
		"0 kills":                   func(r *report) { r.kills-- },
	} {
		r := right()
		change(r)
		if err := r.check(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one with %q", err, want)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"nothing", nil, "nothing was started"},
		{"argument", []string{"-dsn", "x", "y"}, "unexpected argument"},
		{"two servers", []string{"-dsn", "x", "-demo"}, "takes no -dsn"},
		{"load", []string{"-dsn", "x", "-load", "-1"}, "-load"},
		{"rollback", []string{"-dsn", "x", "-rollback", "NaN"}, "-rollback"},
		{"kills", []string{"-dsn", "x", "-load", "2", "-kills", "3"}, "-kills"},
		{"workers", []string{"-dsn", "x", "-workers", "0"}, "-workers"},
		{"slots", []string{"-dsn", "x", "-slots", "0"}, "-slots"},
		{"slow", []string{"-dsn", "x", "-slow", "2m"}, "-slow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(t.Context(), c.args, t.Output(), t.Output())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
		})
	}
}

var row = regexp.MustCompile(`(?m)^([\w-]+) +(\d+)  `)

func rowsOf(t *testing.T, out string) map[string]int {
	t.Helper()
	rows := map[string]int{}
	for _, m := range row.FindAllStringSubmatch(out, -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		rows[m[1]] = n
	}
	return rows
}
