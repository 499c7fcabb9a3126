// Package migrations has only tests: they run the files that the program
// examples/migrate writes by goose and by atlas's reader, and hold the names of
// those for flyway to its rules.
package migrations
