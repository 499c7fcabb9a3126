// Package memory keeps jobs in the memory of the process.
package memory
