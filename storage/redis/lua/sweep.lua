-- Does what is due only because time passed, up to a limit of each sort.

-- What earlier calls of the same sweep did counts too.
local limit, before = args.limit, args.before
local rescued, buried = {}, {}
local rescues, promotions, expiries, purges = before[1], before[2], before[3], before[4]
local more, nextdue = 0, nil
local repaired = 0 -- records and entries that were put right
-- Looks at claims and their jobs, and at final jobs of a state, in one queue.
local MAXLEASES, MAXFINAL = 10 * STEP, 10 * STEP
local MINUTE, SECOND = 60000000, 1000000

local seed = args.seed -- from 0 to 1

local function random() -- not that of Lua, which begins alike in each script
	seed = (seed + 0.6180339887498949) % 1
	return seed
end

-- rescuedelay is pawl.RescueDelay.
local function rescuedelay(n)
	if n <= 1 then return 0 end
	local d = math.min(SECOND * 2 ^ math.min(n - 2, 20), MINUTE)
	return math.floor(d / 2 + random() * (d / 2))
end

local function rescue(q, id, r)
	local ref = {q.n, id, r[FENCE]}
	rescues = rescues + 1
	q.ended[#q.ended + 1] = {id, r[FENCE]}
	unlink(q, id, r)
	fail(q, id, r, 'lease expired', '')
	r[ATTEMPT] = r[ATTEMPT] - 1
	if r[RESCUED] >= r[MAXRES] then
		buried[#buried + 1] = ref
		return finish(q, id, r, sBURIED, wRESCUES)
	end
	rescued[#rescued + 1] = ref
	r[RESCUED], r[RESCUES], r[RUNAT] = r[RESCUED] + 1, r[RESCUES] + 1, now
	wait(q, id, r, wRESCUE, rescuedelay(r[RESCUED]))
end

-- overdue rescues the jobs of one claim whose leases have expired, and notes when
-- the next ones do.
local function overdue(q, token)
	local packed, ids, alive, first = hget(q, INFO, 'i' .. token) or '', {}, {}, nil
	for i = 1, #packed / 16 do ids[i] = sub(packed, 16 * i - 15, 16 * i) end
	q.looks = q.looks + 1 + #ids
	load(q, ids)
	for _, id in ipairs(ids) do
		local r = q.rec[id]
		if r and r[STAT] == sRUNNING and r[TOKEN] == token then
			if r[UNTIL] <= now and rescues < limit then
				rescue(q, id, r)
			else
				alive[#alive + 1] = id
				first = math.min(first or r[UNTIL], r[UNTIL])
			end
		end
	end
	q.left[token] = nil -- counted anew
	if first then
		hput(q, INFO, 'n' .. token, #alive)
		hput(q, INFO, 'i' .. token, table.concat(alive))
		zput(q, LEASE, token, first)
	else
		over(q, token)
	end
	flush(q)
end

local function rescuedue(q)
	while q.looks < MAXLEASES do
		if rescues >= limit then return end
		local at, token = first(q, LEASE)
		if not at or at > now then return end
		overdue(q, token)
	end
	more = 1
end

local function purge(q, max)
	local ids = call('ZRANGEBYSCORE', q.k[PURGE], '-inf', now, 'LIMIT', 0, max)
	load(q, ids)
	for _, id in ipairs(ids) do
		local r = q.rec[id]
		if r and r[STAT] >= sCOMPLETED then
			unlink(q, id, r)
			remove(q, id, r)
		else
			zput(q, PURGE, id, false) -- an orphan
			if not r then scrap(q, id) end
		end
	end
	if #ids > 0 then flush(q) end
	return #ids
end

local function note(at) if at then nextdue = math.min(nextdue or at, at) end end

-- purgeexcess deletes jobs of a final state that are too many, or too old if there is
-- a retention. Jobs behind some thousands that only their unique windows keep have to
-- wait for these. How many there are costs one look.
local function purgeexcess(q, state, most, retention, max)
	if retention == 0 and most == 0 then return 0 end
	local n, done, at = call('ZCARD', q.k[state]), 0, 0
	local excess = most > 0 and n - most or 0
	if retention == 0 and excess <= 0 then return 0 end
	while at < math.min(n, MAXFINAL) and done < max do
		local ids = call('ZRANGE', q.k[state], at, at + STEP - 1)
		load(q, ids)
		for i, id in ipairs(ids) do
			local r, due = q.rec[id], now
			if r then
				if at + i > excess then
					if retention == 0 then return done end
					due = r[FINISHED] + retention
				end
				local goes = math.max(due, windowend(r))
				if goes <= now and done < max then
					unlink(q, id, r)
					remove(q, id, r)
					done = done + 1
				else
					note(goes)
					if due > now and windowend(r) <= due then return done end -- later ones go later
				end
			else
				zput(q, state, id, false) -- an orphan
				local body = state == BURIED and call('HGET', q.k[BODY], id)
				if body then wreck(q, id, body) else scrap(q, id) end
				repaired = repaired + 1
			end
		end
		at = at + STEP
	end
	return done
end

-- purgefinal bounds the final states, in the order of Go's finals.
local function purgefinal(q, max)
	local done, most = 0, args.most[q.n]
	for i, state in ipairs({DONE, BURIED, CANCELED}) do
		if done < max then
			done = done + purgeexcess(q, state, most[i], state == BURIED and args.retention or 0, max - done)
		end
	end
	flush(q)
	return done
end

-- nextlease is when the first lease may expire. Claims that were extended since
-- are looked at, so that nobody is called too early.
local function nextlease(q)
	local most = q.looks + STEP
	while q.looks < most do
		local at, token = first(q, LEASE)
		if not at or at <= now then return at end
		overdue(q, token)
		if first(q, LEASE) == at then return at end
	end
	return first(q, LEASE)
end

local function empty(q)
	for i = BODY, CANCELED do
		if i ~= EXTRA and call('EXISTS', q.k[i]) == 1 then return false end
	end
	return true
end

-- idle reports whether a queue holds nothing and has not been claimed from for
-- an hour, so that it can be forgotten.
local function idle(q)
	return q.known and not q.paused and q.fence <= now - 60 * MINUTE and empty(q) and 1 or 0
end

-- The rest looks, a few records at a time, for what no script leaves behind but an
-- eviction, a foreign hand or a restored backup may: records that are in no index,
-- entries of indexes without a record, running jobs without a lease.

local INDEXES = {LATER, READY, RUN, DONE, BURIED, CANCELED} -- by state
local MAXLOOK, MAXLOOKBYTES, MAXSCANS = 100, 262144, 20

local function member(id, r)
	if r[STAT] == sREADY then return readymember(r, id) end
	if r[STAT] == sSCHEDULED then return latermember(r, id) end
	return id
end

-- lease sees to it that a running job will be rescued.
local function lease(q, id, r)
	local token, ids = r[TOKEN], hget(q, INFO, 'i' .. r[TOKEN]) or ''
	local known = false
	for i = 1, #ids, 16 do known = known or sub(ids, i, i + 15) == id end
	if known and call('ZSCORE', q.k[LEASE], token) then return 0 end
	if not known then
		ids = ids .. id
		hput(q, INFO, 'i' .. token, ids)
	end
	hput(q, INFO, 'n' .. token, #ids / 16)
	zput(q, LEASE, token, now) -- the look at the claim finds out more
	return 1
end

local function repair(q, id, body)
	if #id ~= 16 then return 0 end -- no job's
	local r, bad = recordof(q, id, body), 0
	if not r then
		if call('ZSCORE', q.k[PURGE], id) then return 0 end -- it has ended, and goes in time
		wreck(q, id, body)
		return 1
	end
	if not call('ZSCORE', q.k[INDEXES[r[STAT]]], member(id, r)) then
		link(q, id, r)
		bad = 1
	elseif (r[STAT] == sCOMPLETED or r[STAT] == sCANCELED) and not call('ZSCORE', q.k[PURGE], id) then
		zput(q, PURGE, id, purgeat(r))
		bad = 1
	elseif r[STAT] <= sREADY and r[BEFORE] > 0 and not call('ZSCORE', q.k[EXPIRE], id) then
		zput(q, EXPIRE, id, r[BEFORE])
		bad = 1
	end
	if r[STAT] == sRUNNING and lease(q, id, r) == 1 then bad = 1 end
	if r[UKEY] ~= 0 and holds(r) and not hget(q, UNIQUE, r[UKEY]) then
		hput(q, UNIQUE, r[UKEY], id)
		bad = 1
	end
	return bad
end

-- lookatbodies reads bodies, few at first and then more, as their sizes allow.
local function lookatbodies(q, cursor)
	local n, bytes, count = 0, 0, 1
	for _ = 1, MAXSCANS do
		local found = call('HSCAN', q.k[BODY], cursor, 'COUNT', count)
		for i = 1, #found[2], 2 do
			bytes = bytes + #found[2][i + 1]
			repaired = repaired + repair(q, found[2][i], found[2][i + 1])
		end
		cursor, n = found[1], n + #found[2] / 2
		local room = bytes > 0 and (MAXLOOKBYTES - bytes) * n / bytes or MAXLOOK
		count = math.floor(math.min(2 * count, MAXLOOK - n, room))
		if cursor == '0' or count < 1 then break end
	end
	return cursor
end

local function lookatindex(q, state, cursor)
	local found = call('ZSCAN', q.k[INDEXES[state]], cursor, 'COUNT', MAXLOOK)
	for i = 1, #found[2], 2 do
		local entry = found[2][i]
		local id = state == sREADY and idofready(entry) or state == sSCHEDULED and idoflater(entry) or entry
		load(q, {id})
		local r = q.rec[id]
		if not r or r[STAT] ~= state or member(id, r) ~= entry then
			zput(q, INDEXES[state], entry, false)
			if state == sSCHEDULED then q.retrying = q.retrying - select(3, marked(entry)) end
			repaired = repaired + 1
		elseif state ~= sRUNNING and call('HEXISTS', q.k[BODY], id) == 0 then
			unlink(q, id, r) -- its payload was lost, so it can't run any more
			remove(q, id, r)
			repaired = repaired + 1
		end
	end
	return found[1]
end

-- look goes one step on: through the bodies, then through each index.
local function look(q)
	local at = call('HMGET', q.k[INFO], 'look', 'cursor', 'retrying')
	if at[3] and at[3] ~= '0' and not first(q, LATER) then hput(q, INFO, 'retrying', 0) end
	local what, cursor = tonumber(at[1] or 0), at[2] or '0'
	if what == 0 then
		cursor = lookatbodies(q, cursor)
	else
		cursor = lookatindex(q, what, cursor)
	end
	if cursor == '0' then what = (what + 1) % (#INDEXES + 1) end
	hput(q, INFO, 'look', what)
	hput(q, INFO, 'cursor', cursor)
	flush(q)
end

local forget = {}
whole = true
for n = 1, args.queues do
	local q = open(n - 1)
	q.n, q.looks = n, 0
	rescuedue(q)
	if expiries < limit then expiries = expiries + expire(q, limit - expiries) end
	if promotions < limit then promotions = promotions + promote(q, limit - promotions) end
	if purges < limit then purges = purges + purge(q, limit - purges) end
	if purges < limit then purges = purges + purgefinal(q, limit - purges) end
	if not empty(q) then look(q) end
	note(nextlease(q))
	note((first(q, EXPIRE)))
	note((first(q, LATER)))
	note((first(q, PURGE)))
	close(q)
	forget[n] = idle(q)
end
if nextdue and nextdue <= now or rescues >= limit or expiries >= limit or promotions >= limit
	or purges >= limit then
	more = 1
end
return {rescues, promotions, expiries, purges, more, nextdue and math.max(nextdue - now, 1) or 0, rescued, buried, forget, repaired}
