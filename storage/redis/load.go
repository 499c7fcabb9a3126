package redis

import (
	"context"
	"slices"

	"github.com/pawlq/pawl"
)

// maxLoad is for how many bytes of results one call of the script is made, about. A server
// refuses 512 MiB at once, and takes much longer for one big call than for its parts.
const maxLoad = 4 << 20

// unload settles all but what one call can carry, and returns the parts with what is left.
func (c *cycle) unload(ctx context.Context, keys []any, parts []part) ([]part, error) {
	loads := c.loads(parts)
	for len(loads) > 1 {
		reply, err := c.s.run(ctx, c.s.scripts.cycle, keys, []byte(*c.message(loads[0], claimNothing, 0)))
		if err != nil {
			return nil, err
		}
		if _, err := c.read(parts, reply); err != nil {
			return nil, err
		}
		loads = loads[1:]
	}
	return loads[0], nil
}

// loads divides the outcomes of parts over calls. All outcomes of a job are in one call,
// since that one alone knows which of them it has accepted.
func (c *cycle) loads(parts []part) [][]part {
	total := 0
	for i := range c.outcomes {
		total += len(c.outcomes[i].Result)
	}
	if total <= maxLoad {
		return [][]part{parts}
	}
	calls, last, size := make(map[pawl.ID]int), 0, 0
	for _, p := range parts {
		for _, place := range p.places {
			o := &c.outcomes[place]
			if _, ok := calls[o.Ref.ID]; !ok {
				if size > 0 && size+len(o.Result) > maxLoad {
					last, size = last+1, 0
				}
				calls[o.Ref.ID] = last
			}
			size += len(o.Result)
		}
	}
	loads := make([][]part, last+1)
	for n := range loads {
		loads[n] = slices.Clone(parts)
		for i, p := range parts {
			loads[n][i].places = slices.DeleteFunc(slices.Clone(p.places), func(place int) bool {
				return calls[c.outcomes[place].Ref.ID] != n
			})
		}
	}
	return loads
}
