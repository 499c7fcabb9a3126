package main

import (
	"fmt"
	"strings"

	"github.com/pawlq/pawl/storage/postgres"
)

// A file is one for a migration tool.
type file struct{ name, text string }

// tools make files of a step, with a number in the tool's own order.
var tools = map[string]func(number int, s postgres.Step) []file{
	"goose": goose, "atlas": atlas, "flyway": flyway,
}

// goose takes a statement to end with the line, so they are marked. What is
// marked as one goes to the server as one.
func goose(number int, s postgres.Step) []file {
	var b strings.Builder
	statements := []string{s.SQL}
	if s.Outside {
		b.WriteString("-- +goose NO TRANSACTION\n")
		statements = split(s.SQL)
	}
	b.WriteString("-- +goose Up\n")
	for _, sql := range statements {
		b.WriteString("-- +goose StatementBegin\n" + sql + "-- +goose StatementEnd\n")
	}
	return []file{{fmt.Sprintf("%05d_pawl_%s.sql", number, s.Name), b.String()}}
}

// atlas keeps sums of its files: run "atlas migrate hash" afterwards.
func atlas(number int, s postgres.Step) []file {
	text := s.SQL
	if s.Outside {
		text = "-- atlas:txmode none\n\n" + text
	}
	return []file{{fmt.Sprintf("%05d_pawl_%s.sql", number, s.Name), text}}
}

// flyway has settings of a file beside it.
func flyway(number int, s postgres.Step) []file {
	name := fmt.Sprintf("V%d__pawl_%s.sql", number, s.Name)
	files := []file{{name, s.SQL}}
	if s.Outside {
		files = append(files, file{name + ".conf", "executeInTransaction=false\n"})
	}
	return files
}

// split returns the statements of a step that is to be run outside of a
// transaction.
func split(sql string) (statements []string) {
	for _, s := range strings.SplitAfter(sql, ";\n") {
		if strings.TrimSpace(s) != "" {
			statements = append(statements, s)
		}
	}
	return statements
}
