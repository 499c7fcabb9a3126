// Package memory keeps jobs in the memory of the process.
//
// It is for tests, and for jobs that may die with the process: when the process
// ends, all jobs are gone, whatever their state. Everything else that
// [pawl.Storage] promises holds, and more exactly than on a server:
//
//   - Every call is atomic and seen by others as a whole, and is refused before
//     it changes anything if its context is over. Cycle is the two calls that it
//     consists of.
//   - Claims come in exact order, depth limits are exact, NextDue is exact to
//     the microsecond.
//   - Watch tells of everything. A watcher that does not keep up learns of more
//     than 256 queues at a time without their names, and loses ended claims
//     beyond 16,384.
//   - There are no transactions and no second process.
//
// # How it works
//
// One mutex guards everything. A job is one record; each queue keeps its
// records in one B+ tree per state, in the order in which that state is claimed
// and listed, and further trees order all jobs by the times at which they
// change by themselves. Records lie in pages, and trees and indexes refer to
// them by number, so that jobs which only lie there are little work for the
// garbage collector. So every change of a job, by whatever verb, costs
// O(log n), counts are always at hand, and a page of a list starts where the
// last one ended.
//
// No call holds the mutex for more than some 10,000 records, a few milliseconds,
// with one exception: when seven of eight jobs are gone, the index of the rest
// moves to a smaller map, 10 ms after a million jobs. Payloads are copied
// outside of the mutex.
//
// # Cost
//
// Beside its payload, rounded up by Go's allocator, a ready job takes about 250
// bytes, a scheduled one 270, a completed or canceled one 285. Metadata, unique
// keys, StartBefore, results, progress, a history of failures or counts other
// than zero take 180 bytes more and what they hold.
//
// A queue takes about 500 bytes while it holds a job or is paused. Memory is
// given back to Go as jobs go. Retention is what bounds the number of completed
// jobs: a store that runs 1,000 jobs a second and keeps each for an hour holds
// 3.6 million, a gigabyte.
package memory
