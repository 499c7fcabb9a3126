-- Stores requests that differ in nothing but their IDs and what need not be read of them,
-- as those of most calls: enqueue.lua without what takes time for each.

-- Fields of a section; Go's plain.go has the same list. IDS is all of them in one string.
-- What need not be read of them are arguments, from FROM on.
local KNOWN, IDS, FROM, URGENCY, WAIT, WHEN, KEEP, TRIES, SAVES, TERM = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10

-- around returns what is before and after seq in the heads of jobs, which are as pack makes
-- them of records.
local function around(s, state, at)
	if s[TERM] > 0 then
		return '\153' .. pack(state, s[URGENCY], at), pack(now, s[KEEP], s[TRIES], s[SAVES], s[TERM])
	end
	return '\152' .. pack(state, s[URGENCY], at), pack(now, s[KEEP], s[TRIES], s[SAVES])
end

local exist = {} -- the arguments of requests whose IDs were there

-- storesome stores the requests of a section from first to last.
local function storesome(q, s, first, last)
	local at = math.max(s[WHEN] > 0 and s[WHEN] or now + s[WAIT], now)
	local later, urgency = at > now, s[URGENCY]
	local before, after = around(s, later and sSCHEDULED or sREADY, at)
	local ids, bodies, heads, entries, n, seq = {}, {}, {}, {}, 0, q.seq
	for i = first, last do ids[i - first + 1] = sub(s[IDS], 16 * i - 15, 16 * i) end
	local there = call('HMGET', q.k[BODY], unpack(ids))
	for i, id in ipairs(ids) do
		local place = s[FROM] + first + i - 2
		if there[i] or q.rec[id] then
			exist[#exist + 1] = place
		else
			seq = seq + 1
			local head, rest = before .. pack(seq) .. after, ARGV[place]
			bodies[n + 1], bodies[n + 2] = id, head .. rest
			if later then
				entries[n + 1], entries[n + 2] = at, spack('>I6I2', seq, (urgency + 1000) * 2) .. id
			else
				entries[n + 1], entries[n + 2] = urgency, spack('>I7I6', at, seq) .. id
			end
			if #rest >= BIG then heads[#heads + 1], heads[#heads + 2] = id, head end
			q.rec[id], n = true, n + 2
		end
	end
	if n == 0 then return end
	call('HSET', q.k[BODY], unpack(bodies))
	if #heads > 0 then call('HSET', q.k[STATE], unpack(heads)) end
	call('ZADD', q.k[later and LATER or READY], unpack(entries))
	q.seq, q.newseq = seq, true
	if later then
		q.later = at
	else
		q.fresh = q.fresh + n / 2
	end
end

local queues, unknown = {}, {}
for n, s in ipairs(args.queues) do
	queues[n] = open(n - 1)
	if not queues[n].known and s[KNOWN] == 0 then unknown[#unknown + 1] = n end
end
if #unknown > 0 then return {'unknown', unknown} end

for n, s in ipairs(args.queues) do
	local q, count = queues[n], #s[IDS] / 16
	for first = 1, count, STEP do storesome(q, s, first, math.min(first + STEP - 1, count)) end
	if q.newseq or not q.known then call('HSET', q.k[INFO], 'seq', q.seq, 'known', 1) end
	tell(q)
end
return {'ok', exist}
