package storagetest

// Which case holds which sentence of storage.go. A sentence that is not here is
// beyond a test of this kind: that a rescue reads no large payloads, that a page's
// work is bounded, durability as an engine states it, ErrSchema, ErrClosed, and
// that Watch recovers lost connections are for the engine's own tests.
//
// Storage
//
//	any number of processes              "rules/claim is seen by other handles", "concurrent/everything at once"
//	return after their context ends      "rules/a call whose context is over", "tx/a call that waits for a transaction"
//	atomic and durable                   "rules/two handles see the same", "rules/a refused enqueue changes nothing"
//	ErrInvalid, ErrFull: no change       "rules/list refuses a corrupt cursor", "rules/enqueue is all or none"
//	UTC, to the microsecond              "rules/times are UTC and kept to the microsecond", "rules/run time is rounded up"
//	shown as Scheduled until promoted    "rules/sweep promotes"
//	no reference to arguments            "rules/no aliasing"
//	limits of the contract               "rules/extremes", "rules/names", "rules/texts", "rules/failures are bounded"
//
// Claim
//
//	order of spec.Queues                 "rules/claim empties queues in strict order"
//	Priority, RunAt, insertion           "rules/claim order", "rules/claim order of many due jobs"
//	what a claimed job gets              "rules/claim sets the record", "rules/fence is never reused"
//	UniqueUntilClaimed                   "rules/unique until claimed"
//	due jobs are claimable               "rules/never early"
//	StartBefore                          "rules/claim does not return late jobs"
//	paused queues                        "rules/paused queue yields nothing", "rules/pause is seen by other handles"
//	fewer than asked for                 "concurrent/claims until fewer come"
//	may do some of Sweep's work          "model/random", which follows
//	Repeat                               "rules/claim can be repeated", "rules/repeat returns only what is still running"
//	atomic for each queue                "concurrent/claims are distinct"
//	Claimed.NextDue                      "rules/claim says when the next job is due",
//	                                     "rules/claim says when the next job is due after others were claimed"
//
// Extend
//
//	LeaseUntil, Counts.Extends           "rules/extend renews the lease"
//	Progress                             "rules/extend stores progress"
//	an expired lease is good again       "rules/extend of an expired lease"
//	lost, in order                       "rules/extend returns what is lost", "rules/lost refs come back as given"
//	yes, or lost                         "concurrent/extend against rescue"
//	never waits                          "tx/an open ack does not stop the heartbeat"
//
// Sweep
//
//	promotes, rescues, ends, purges      "rules/sweep promotes", "rules/rescue", "rules/claim does not return late jobs",
//	                                     "rules/retention keeps the record"
//	at most spec.Limit; More             "rules/sweep is bounded"
//	no leader                            "concurrent/sweeps need no leader", "rules/sweep covers all queues"
//	waits again                          "rules/rescue delay"
//	MaxRescues, NoRescues                "rules/rescues are limited", "rules/kick resets rescues"
//	a rescue never waits                 "tx/an open ack does not stop the heartbeat"
//	BuriedRetention                      "rules/buried jobs stay"
//	MaxCompleted, MaxBuried, MaxCanceled "rules/MaxCompleted deletes the oldest", "rules/MaxBuried deletes the oldest",
//	                                     "rules/MaxCanceled deletes the oldest", "rules/ends at one time",
//	                                     "rules/numbers are counted by state and queue",
//	                                     "rules/what is over does not count", "concurrent/sweeps beside jobs that end"
//	not one more                         "concurrent/sweeps of buried jobs", "concurrent/sweeps of completed jobs",
//	                                     "rules/what is kicked or deleted meanwhile counts"
//	a window keeps a record              "rules/window outlasts retention"
//	Swept.NextDue                        "rules/sweep says when it is next needed", "rules/a window says when a buried job goes"
//
// Writer
//
//	a failed call in a transaction       "tx/a refused enqueue in a transaction", "tx/a context that is over in a transaction",
//	                                     "tx/a context that ends inside enqueue in a transaction",
//	                                     "tx/a context that ends inside settle in a transaction"
//	all or none, in order, receipts      "rules/enqueue returns a receipt each", "rules/enqueue is all or none"
//	Exists                               "rules/enqueue of a present ID changes nothing", "rules/purge frees the ID"
//	Duplicate, Replaced                  "rules/unique key is held by one job", "rules/replace rewrites the waiting holder"
//	MaxDepth                             "rules/depth is looked at last", "rules/drop the oldest"
//	Scheduled or Ready                   "rules/enqueue later or now"
//	not of one moment, but in order      "concurrent/requests of a call are in order", "concurrent/requests of a call are in order in a full queue"
//	MaxBatch, MaxBatchBytes              "rules/enqueue of many", "rules/enqueue of many that meet", "rules/enqueue of many bytes"
//	the job moves as Verb says           "table/running (claimed) × ack" and those beside it, "rules/nack spends an attempt",
//	                                     "rules/hand back spends no attempt", "rules/DeleteNow removes the record"
//	ended by the same verb before        "rules/settle can be repeated", "rules/settle by another verb is lost"
//	lost, as given                       "rules/lost refs come back as given", "tx/settle of a lost claim in a transaction"
//	Outcome.Repeat                       "rules/settle of a missing job"
//	the same outcome again in a call     "rules/settle twice in one call",
//	                                     "rules/settle again after a newer claim in one call"
//	one outcome never hinders another    "rules/one outcome never hinders another"
//	BusyError                            "tx/settle does not wait for an open transaction",
//	                                     "tx/settle does not wait for an enqueue of the same ID"
//
// Admin
//
//	ends the fence                       "rules/change ends the fence"
//	Get                                  "rules/get", "rules/get of many", "concurrent/reads are of one moment"
//	List's order                         "rules/list order"
//	a Cursor that was made up            "rules/list does not fall for names", "rules/list refuses a corrupt cursor"
//	seen exactly once                    "rules/list pages", "rules/list while jobs move"
//	Filter, Payloads, MaxPageBytes       "rules/list filters", "rules/list without payloads", "rules/list pages are bounded in bytes"
//	Count                                "rules/count", "rules/count conserves", "rules/queues are forgotten"
//	Retrying, OldestReady                "rules/count tells retrying jobs", "rules/count tells the oldest"
//	Change                               "rules/change answers for each ID", "rules/change keeps to From",
//	                                     "rules/change of a queue", "rules/more IDs than jobs"
//	Kick, Conflict                       "rules/kick", "rules/kick into a held key names the holder"
//	Cancel, Delete                       "table/running (claimed) × cancel", "rules/delete gives the key up"
//	Reschedule, Edit                     "rules/reschedule", "rules/edit", "rules/edit moves the job"
//	Configure                            "rules/paused queue yields nothing"
//
// Watcher, Cycler
//
//	events                               "watch/ready after enqueue", "watch/ended after cancel", "watch/paused"
//	until ctx ends                       "watch/watch ends with its context"
//	f from one goroutine at a time       "watch/events come one at a time"
//	Settle followed by Claim             "rules/cycle is settle and claim"
//	also after a BusyError               "tx/cycle claims also when settle is busy"
