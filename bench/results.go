package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
)

// A Result is one figure of a cell over all repetitions.
type Result struct {
	System   string  `json:"system"`
	Storage  string  `json:"storage"`
	Workload string  `json:"workload"` // the name of the figure: latency gives two
	Params   Params  `json:"params"`
	Value    float64 `json:"value"` // the median
	Unit     string  `json:"unit,omitempty"`
	Min      float64 `json:"min"`
	Max      float64 `json:"max"`
	N        int     `json:"n"`
	// RatioTo has, for each figure of pawl, the median ratio to each peer in the
	// same repetition: above 1, pawl is better.
	RatioTo map[string]float64 `json:"ratio_to,omitzero"`
	// Reason says why there is no figure.
	Reason string `json:"reason,omitempty"`

	less   bool
	values []float64 // by repetition
}

// MarshalJSON implements [json.Marshaler]: what was not measured has no figures.
func (r *Result) MarshalJSON() ([]byte, error) {
	type plain Result // without methods
	if r.N > 0 {
		return json.Marshal((*plain)(r))
	}
	return json.Marshal(struct {
		*plain
		Value *float64 `json:"value"`
		Min   *float64 `json:"min"`
		Max   *float64 `json:"max"`
	}{plain: (*plain)(r)})
}

// notOffered reports whether there is no figure because the system lacks something.
func (r *Result) notOffered() bool { return strings.HasPrefix(r.Reason, errCannot.Error()) }

// summarize makes results of the runs of a group, by cell and repetition.
func summarize(g group, runs [][]outcome) []*Result {
	var results []*Result
	for i, c := range g {
		results = append(results, summarizeCell(c, runs[i])...)
	}
	for _, r := range results {
		if r.System == "pawl" && r.Reason == "" {
			r.RatioTo = ratios(r, results)
		}
	}
	return results
}

func summarizeCell(c *Cell, runs []outcome) (results []*Result) {
	byName := map[string]*Result{}
	var reason error
	for _, o := range runs {
		if o.err != nil {
			reason = errors.Join(reason, o.err)
			continue
		}
		for _, m := range o.metrics {
			r := byName[m.Name]
			if r == nil {
				r = &Result{System: c.C.Name, Storage: c.C.Storage, Workload: m.Name, Params: c.P, Unit: m.Unit, less: m.Less}
				byName[m.Name] = r
				results = append(results, r)
			}
			r.values = append(r.values, m.Value)
		}
	}
	if len(results) == 0 {
		return []*Result{{System: c.C.Name, Storage: c.C.Storage, Workload: c.W.Name, Params: c.P, Reason: why(reason)}}
	}
	for _, r := range results {
		r.Value, r.Min, r.Max, r.N = median(r.values), slices.Min(r.values), slices.Max(r.values), len(r.values)
	}
	return results
}

func why(err error) string {
	if err == nil {
		return "no figure"
	}
	return err.Error()
}

// ratios compares a result of pawl with those of each peer in its group: with
// the best of the peer's configurations and numbers of slots in that repetition.
func ratios(r *Result, all []*Result) map[string]float64 {
	byPeer := map[string][]*Result{}
	for _, peer := range all {
		if peer.System != "pawl" && peer.Workload == r.Workload && peer.Reason == "" && alike(r, peer, all) {
			byPeer[peer.System] = append(byPeer[peer.System], peer)
		}
	}
	to := map[string]float64{}
	for name, peers := range byPeer {
		peers = ofLikeBatch(r, peers, all)
		var each []float64
		for rep, value := range r.values {
			if at := bestAt(peers, rep); at > 0 && value > 0 {
				each = append(each, advantage(value, at, r.less))
			}
		}
		if len(each) > 0 {
			to[name] = median(each)
		}
	}
	return to
}

// ofLikeBatch leaves, of a limit that was measured with several batches, the
// one whose batch is closest to what the pool's claims had.
func ofLikeBatch(r *Result, peers, all []*Result) []*Result {
	i := slices.IndexFunc(all, func(o *Result) bool {
		return o.System == r.System && o.Workload == jobsPerClaim && o.Params == r.Params
	})
	if i < 0 || slices.ContainsFunc(peers, func(p *Result) bool { return p.Params.Batch == 0 || p.Params.Slots > 0 }) {
		return peers
	}
	far := func(p *Result) float64 { return math.Abs(math.Log(float64(p.Params.Batch) / all[i].Value)) }
	return []*Result{slices.MinFunc(peers, func(a, b *Result) int { return cmp.Compare(far(a), far(b)) })}
}

// alike reports whether a peer's result is of the retention of r, or the
// peer has none of that retention in the group.
func alike(r, peer *Result, all []*Result) bool {
	if peer.Params.Retention == r.Params.Retention {
		return true
	}
	return !slices.ContainsFunc(all, func(o *Result) bool {
		return o.System == peer.System && o.Workload == r.Workload && o.Reason == "" && o.Params.Retention == r.Params.Retention
	})
}

func bestAt(peers []*Result, rep int) (found float64) {
	for _, p := range peers {
		if rep >= len(p.values) {
			continue
		}
		if v := p.values[rep]; found == 0 || p.less && v < found || !p.less && v > found {
			found = v
		}
	}
	return found
}

func advantage(ours, theirs float64, less bool) float64 {
	if less {
		return theirs / ours
	}
	return ours / theirs
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
