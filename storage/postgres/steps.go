package postgres

import (
	"io/fs"
	"strings"
)

// A Step is one of the files of [Migrations], for the schema and prefix of some
// Options.
type Step struct {
	Version int    // of the schema, after it
	Name    string // short, as "init"
	SQL     string

	// Outside says that the statements are to be run one by one, outside of a
	// transaction. Each ends with ";\n".
	Outside bool
}

// Steps returns all steps, in order, for tools that know no placeholders; the
// program examples/migrate writes them as files for some. It connects to nothing.
func Steps(o *Options) ([]Step, error) {
	f, err := o.filled()
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	steps := make([]Step, len(names))
	for i, name := range names {
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			return nil, err
		}
		_, short, _ := strings.Cut(strings.TrimSuffix(name, ".sql"), "_")
		steps[i] = Step{i + 1, short, named(string(text), f), strings.HasSuffix(short, "_concurrently")}
	}
	return steps, nil
}
