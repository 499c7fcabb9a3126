// Package tasktest helps to test programs that use package task: it runs
// handlers without a worker, and asserts what was enqueued, also inside a
// transaction that is still open.
//
// To run all jobs that a test enqueued, use the Drain of package worker.
package tasktest
