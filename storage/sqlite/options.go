package sqlite

import (
	"log/slog"
	"regexp"
	"time"

	"github.com/pawlq/pawl"
)

// DefaultPrefix begins the names of all tables and indexes.
const DefaultPrefix = "pawl_"

// Synchronous says when a commit waits for the disk.
type Synchronous int

const (
	// Full syncs every commit.
	Full Synchronous = iota
	// Normal syncs now and then: a loss of power, but not a crash of the
	// program, can undo the last commits. The file stays consistent, but a
	// fence may be given twice across the loss.
	Normal
	// Off leaves it to the operating system: a loss of power can damage the
	// file. It is for tests.
	Off
)

// level is the number that SQLite has for s.
func (s Synchronous) level() int { return int(2 - s) }

// Defaults and limits of Options.
const (
	defaultBatchJobs    = 2000    // some 10 ms of writing
	defaultBatchBytes   = 8 << 20 // what one commit adds to the write-ahead log
	defaultPollInterval = 2 * time.Millisecond
	maxPrefixLen        = 40
	maxReaders          = 8 // reads at a time; each connection has a page cache
	idleConns           = 8 // connections that the program's pool keeps
)

// Options are the settings of a Store. The zero value of each is its default.
type Options struct {
	// Prefix begins the names of the tables: a letter, then letters, digits
	// and '_', at most 40. Empty means DefaultPrefix.
	Prefix string

	// Synchronous is set on the connections of Open; with New it is what the
	// program's connections are expected to have, and a weaker setting is
	// logged as a warning.
	Synchronous Synchronous

	// BatchJobs and BatchBytes end the group of calls that share a commit: when
	// it has that many jobs (0 means 2,000) or bytes of payload (0 means 8 MiB).
	// A single call is never split.
	BatchJobs  int
	BatchBytes int

	// PollInterval is how often the file is asked whether another process, or
	// a transaction of the program, has changed it, while somebody watches.
	// One such look takes some microseconds. When nothing has happened for a
	// few looks, Linux tells of the next change instead, and looks become rare,
	// down to one a second; elsewhere the interval becomes seven times as long.
	// 0 means 2 ms.
	PollInterval time.Duration

	// NoMigrate leaves the schema as it is; Open and New then fail with a
	// [pawl.SchemaError] if it is missing or old.
	NoMigrate bool

	// Clock is the storage's clock; nil means time.Now. It is for tests.
	Clock func() time.Time

	// Logger gets warnings; nil means slog.Default().
	Logger *slog.Logger
}

func (o *Options) filled() (*Options, error) {
	f := Options{}
	if o != nil {
		f = *o
	}
	if f.Prefix == "" {
		f.Prefix = DefaultPrefix
	}
	if !regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`).MatchString(f.Prefix) || len(f.Prefix) > maxPrefixLen {
		return nil, &pawl.InvalidError{Field: "Prefix", Limit: "a letter, then letters, digits and '_', at most 40"}
	}
	if f.Synchronous < Full || f.Synchronous > Off {
		return nil, &pawl.InvalidError{Field: "Synchronous", Limit: "Full, Normal or Off"}
	}
	if f.BatchJobs <= 0 {
		f.BatchJobs = defaultBatchJobs
	}
	if f.BatchBytes <= 0 {
		f.BatchBytes = defaultBatchBytes
	}
	if f.PollInterval <= 0 {
		f.PollInterval = defaultPollInterval
	}
	if f.Logger == nil {
		f.Logger = slog.Default()
	}
	return &f, nil
}
