-- Stores requests, all or none.

local REPLACE, DROP = 1, 1
local queues, receipts, unknown, wholes = {}, {}, {}, {}
for n, section in ipairs(args.queues) do
	queues[n] = admit(n, section, unknown)
	if not queues[n].known then hput(queues[n], INFO, 'known', 1) end
	if section.bounded == 1 then
		local q = queues[n]
		-- Shards of one queue share its depth, of which some may lie elsewhere.
		q.all = wholes[section.queue] or {depth = 0}
		wholes[section.queue] = q.all
		q.all.depth = q.all.depth + section.elsewhere + call('ZCARD', q.k[READY]) + call('ZCARD', q.k[LATER])
		q.all[#q.all + 1] = q
		q.log = {}
	end
end
if #unknown > 0 then return {'unknown', unknown} end

-- terms sets what of a record comes from its request and the time.
local function terms(r, req)
	local at = math.max(req[AT] > 0 and req[AT] or now + req[DELAY], now)
	r[STAT], r[PRIO], r[RUNAT] = at > now and sSCHEDULED or sREADY, req[P], at
	r[RETAIN], r[MAXATT], r[MAXRES], r[OWNLEASE] = req[RET], req[ATT], req[RES], req[OWN]
end

local function extras(r, req)
	r[BEFORE], r[UKEY], r[UMODE], r[UWINDOW] = req[BEF], req[KEY], req[MODE], req[WIN]
	r[HELD] = req[KEY] ~= 0 and 1 or 0
end

local function store(q, req)
	local id, r = req[ID], {0, 0, 0, 0, now}
	q.seq, q.newseq = q.seq + 1, true
	r[SEQ] = q.seq
	terms(r, req)
	extras(pad(r), req)
	if req[KEY] ~= 0 then hput(q, UNIQUE, req[KEY], id) end
	link(q, id, r)
	local rest = ARGV[req[PLACE]]
	if #rest < BIG then q.dirty[id] = nil end -- the body has it all
	hput(q, BODY, id, pack(r) .. rest)
	q.rec[id] = r
end

local function replace(q, id, r, req)
	unlink(q, id, r)
	if req[KEY] ~= r[UKEY] then dropkey(q, id, r) end
	terms(r, req)
	extras(r, req)
	r[ATTEMPT], r[RESCUED], r[WHY] = 0, 0, 0
	if r[PROGRESS] == 1 then
		r[PROGRESS] = 0
		hput(q, EXTRA, 'p' .. id, false)
	end
	hput(q, BODY, id, pack(r) .. ARGV[req[PLACE]])
	link(q, id, r)
end

-- least returns the waiting job of a queue that would give way, how it compares
-- with those of other shards, of which the least goes, and its entry. What is none of ours goes
-- before all of its priority.
local function least(q)
	flush(q)
	local last = call('ZREVRANGE', q.k[READY], 0, 0, 'WITHSCORES')
	if #last > 0 then
		local member = call('ZRANGEBYSCORE', q.k[READY], last[2], last[2], 'LIMIT', 0, 1)[1]
		return idofready(member), -tonumber(last[2]), readyat(member) or 0, READY, member
	end
	last = call('ZRANGE', q.k[LATER], 0, 0, 'WITHSCORES')
	if #last > 0 then return idoflater(last[1]), 5000, tonumber(last[2]), LATER, last[1] end
end

-- drop cancels the waiting job that gives way. There is none only if all that the
-- depth counts is on other nodes.
local function drop(all)
	local q, id, rank, at, set, member
	for _, p in ipairs(all) do
		local i, x, y, s, m = least(p)
		if i and (not id or x < rank or x == rank and y < at) then q, id, rank, at, set, member = p, i, x, y, s, m end
	end
	if not id then return end
	local r = get(q, id)
	if not r then -- its record was lost or damaged
		q.waiting = q.waiting - 1
		if set == LATER then q.retrying = q.retrying - select(3, marked(member)) end
		return zput(q, set, member, false)
	end
	unlink(q, id, r)
	finish(q, id, r, sCANCELED, wDROPPED)
end

local function waiting(all)
	local n = all.depth
	for _, q in ipairs(all) do n = n + q.waiting end
	return n
end

-- enqueue deals with one request. It returns false if the queue is full.
local function enqueue(q, req)
	local id = req[ID]
	if q.rec[id] or q.bad[id] then return EXISTS, id end
	if not req[BEF] then
		if not q.log then
			storeplain(q, req)
			return STORED
		end
		for i = BEF, FULL do req[i] = 0 end -- others of this call must see it
	end
	if req[KEY] ~= 0 then
		local r, who = holder(q, req[KEY])
		if r then
			if req[DUP] ~= REPLACE or r[STAT] > sREADY then return DUPLICATE, who end
			replace(q, who, r, req)
			return REPLACED, who
		end
	end
	if req[DEPTH] > 0 and waiting(q.all) >= req[DEPTH] then
		if req[FULL] ~= DROP then return false end
		drop(q.all)
		load(q, {id})
	end
	store(q, req)
	return STORED
end

-- revert puts back what was flushed.
local function revert(q)
	for i = #q.log, 1, -1 do
		local command, key, field, old = unpack(q.log[i])
		if command == 'HGET' then
			if old then call('HSET', key, field, old) else call('HDEL', key, field) end
		elseif old then
			call('ZADD', key, old, field)
		else
			call('ZREM', key, field)
		end
	end
end

for n, section in ipairs(args.queues) do
	local q, reqs = queues[n], section.reqs
	present(q, reqs)
	for i, req in ipairs(reqs) do
		if q.rec[req[ID]] == nil then load(q, {req[ID]}) end
		local status, id = enqueue(q, req)
		if not status then
			for m = #queues, 1, -1 do
				if queues[m].log then revert(queues[m]) end
			end
			return {'full', n, i}
		end
		receipts[#receipts + 1] = status
		if id then receipts[#receipts + 1] = id end
	end
end
for _, q in ipairs(queues) do
	writeplain(q)
	close(q)
end
return {'ok', receipts}
