package mysql

import (
	"log/slog"
	"regexp"
	"time"

	"github.com/pawlq/pawl"
)

// DefaultPrefix begins the names of all tables.
const DefaultPrefix = "pawl_"

// Defaults and limits of Options.
const (
	maxPrefixLen        = 40 // so that each table's name fits in 64 bytes
	defaultBatchJobs    = 1000
	defaultBatchBytes   = 8 << 20
	defaultPollInterval = 50 * time.Millisecond
)

// Options are the settings of a Store. The zero value of each is its default.
type Options struct {
	// Prefix begins the names of the tables: a lower-case letter, then lower-case
	// letters, digits and '_', at most 40. Empty means DefaultPrefix.
	Prefix string

	// NoMigrate leaves the schema as it is; New then fails with a
	// [pawl.SchemaError] if it is missing or old.
	NoMigrate bool

	// BatchJobs and BatchBytes bound the calls of Enqueue with one request each
	// that share an insert. They do when more than two are under way at once. 0
	// means 1,000 jobs and 8 MiB, BatchJobs 1 that none do.
	BatchJobs  int
	BatchBytes int

	// PollInterval is how often the server is asked whether another process has
	// enqueued anything, while somebody watches. While nothing happens it grows,
	// up to ten times that. 0 means 50 ms, a negative one never.
	PollInterval time.Duration

	// Clock replaces the server's clock if it is not nil. It is for tests.
	Clock func() time.Time

	// Logger gets warnings; nil means slog.Default().
	Logger *slog.Logger
}

// prefixPattern is what prefixes look like: names with capital letters are other
// names on some file systems.
var prefixPattern = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func (o *Options) filled() (*Options, error) {
	f := Options{}
	if o != nil {
		f = *o
	}
	if f.Prefix == "" {
		f.Prefix = DefaultPrefix
	}
	if !prefixPattern.MatchString(f.Prefix) || len(f.Prefix) > maxPrefixLen {
		return nil, &pawl.InvalidError{Field: "Prefix", Limit: "lower-case letters, digits and '_', at most 40"}
	}
	if f.BatchJobs <= 0 {
		f.BatchJobs = defaultBatchJobs
	}
	if f.BatchBytes <= 0 {
		f.BatchBytes = defaultBatchBytes
	}
	if f.PollInterval == 0 {
		f.PollInterval = defaultPollInterval
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
	return &f, nil
}
