-- Requests and those that are plain. It follows record.lua in scripts that enqueue. What
-- they need not read of requests, payloads above all, follows the first argument, one for
-- each.

-- Fields of a request; Go's enqueue.go has the same list.
-- Most requests end at PLACE and are plain: what follows is not set.
local ID, P, DELAY, AT, RET, ATT, RES, OWN, PLACE, BEF, KEY, MODE, WIN, DUP, DEPTH, FULL =
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
local STORED, EXISTS, DUPLICATE, REPLACED = 1, 2, 3, 4
-- Bytes of a body from where on its head is also kept apart as a record, so that it can be
-- read alone.
local BIG = 2048

-- admit opens the queue of a section, and notes if nobody has entered it in the register.
local function admit(n, section, unknown)
	local q = open(n - 1)
	q.plain = {bodies = {}, heads = {}, ready = {}, later = {}}
	if not q.known and section.known == 0 then unknown[#unknown + 1] = n end
	return q
end

-- present marks the IDs that are there, which is all that most requests need to
-- know of them.
local function present(q, reqs)
	for i = 1, #reqs, STEP do
		local ids = {}
		for j = i, math.min(i + STEP - 1, #reqs) do ids[#ids + 1] = reqs[j][ID] end
		local bodies = call('HMGET', q.k[BODY], unpack(ids))
		for j, id in ipairs(ids) do
			if not bodies[j] then q.rec[id] = false end
		end
	end
end

-- storeplain stores a plain request, in lists that need no look at what was changed
-- before.
local function storeplain(q, req)
	local id, p, own, seq = req[ID], q.plain, req[OWN], q.seq + 1
	local at = math.max(req[AT] > 0 and req[AT] or now + req[DELAY], now)
	local r = {sREADY, req[P], at, seq, now, req[RET], req[ATT], req[RES], own > 0 and own or nil}
	q.seq, q.newseq, q.rec[id] = seq, true, true
	local n = #p.bodies
	if at > now then
		r[STAT] = sSCHEDULED
		local m = #p.later
		p.later[m + 1], p.later[m + 2] = at, latermember(r, id)
		q.later = math.min(q.later or at, at)
	else
		local m = #p.ready
		p.ready[m + 1], p.ready[m + 2] = r[PRIO], readymember(r, id)
		q.fresh = q.fresh + 1
	end
	local first, rest = pack(r), ARGV[req[PLACE]]
	p.bodies[n + 1], p.bodies[n + 2] = id, first .. rest
	if #rest >= BIG then
		local m = #p.heads
		p.heads[m + 1], p.heads[m + 2] = id, first
	end
end

local function writeplain(q)
	chunked('HSET', q.k[BODY], q.plain.bodies, 2 * STEP)
	chunked('HSET', q.k[STATE], q.plain.heads, 2 * STEP)
	chunked('ZADD', q.k[READY], q.plain.ready, 2 * STEP)
	chunked('ZADD', q.k[LATER], q.plain.later, 2 * STEP)
end
