// Package tasktest helps to test programs that use package task. It runs
// handlers without a worker ([Run]), asserts what was enqueued
// ([AssertEnqueued]), also inside a transaction that is still open
// ([AssertEnqueuedTx]), finds handlers that are not idempotent ([Idempotent],
// [Chaos]) and has a [Clock] for storages.
//
// The jobs that [Run] and [RunJob] run are stored nowhere. A handler that acks
// its job by itself, in a transaction or not, or reports progress, needs one that
// is: run it with the RunOne of package worker. Its Drain runs all jobs that a test
// enqueued.
package tasktest
