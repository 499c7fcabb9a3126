-- Settles outcomes and claims jobs.

-- Fields of an outcome; Go's claim.go has the same list. Most end at VERB: an ack of no
-- result that is not repeated.
local PLACE, ID, REF, VERB, DELAY, URGENCY, PAYLOAD, STACK, REPEAT = 1, 2, 3, 4, 5, 6, 7, 8, 9
local ACK, NACK, BURY, RELEASE, SNOOZE, SKIP = 1, 2, 3, 4, 5, 6
-- How a claim is made: not at all, with new jobs, with those of its token if there
-- are any, only with those, or with none, but what is ready is counted.
local FRESH, AGAIN, ONLYAGAIN, LOOK = 1, 2, 3, 4
-- Promotions, and looks at ready jobs, of one call. More are left to further calls:
-- a claim must not choose before all due jobs are ready.
local MAXPROMOTED, MAXPOPPED = 10 * STEP, 10 * STEP

local lost, jobs, queues, wrecked = {}, {}, {}, {}

-- lose forgets what is left of a job whose payload was lost, so that it can't run.
local function lose(q, id, state)
	local r = not isshort(state) and decode(state)
	if r then remove(q, id, r) else scrap(q, id) end
end

-- handback makes a record wait as if its claim had not been.
local function handback(q, id, r, o)
	local count, why = RELEASES, wRELEASE
	if o[VERB] == SNOOZE then count, why = SNOOZES, wSNOOZE end
	if o[VERB] == SKIP then count, why = SKIPS, wSKIP end
	if o[VERB] == RELEASE and o[URGENCY] < 2000 then r[PRIO] = o[URGENCY] end
	r[ATTEMPT] = r[ATTEMPT] - 1
	r[count] = r[count] + 1
	wait(q, id, r, why, o[DELAY])
end

local function settleone(q, id, r, o)
	local verb = o[VERB]
	unlink(q, id, r)
	r[LASTFENCE], r[LASTVERB] = r[FENCE], verb
	if verb == ACK then
		if o[PAYLOAD] and o[PAYLOAD] ~= '' then
			r[RESULT] = 1
			hput(q, EXTRA, 'r' .. id, o[PAYLOAD])
		elseif r[RESULT] == 1 then
			r[RESULT] = 0
			hput(q, EXTRA, 'r' .. id, false)
		end
		return finish(q, id, r, sCOMPLETED, 0)
	end
	if verb > BURY then return handback(q, id, r, o) end
	fail(q, id, r, o[PAYLOAD], o[STACK])
	if verb == BURY then return finish(q, id, r, sBURIED, wBURY) end
	if r[MAXATT] ~= -1 and r[ATTEMPT] >= r[MAXATT] then return finish(q, id, r, sBURIED, wATTEMPTS) end
	r[RETRIES], r[RUNAT] = r[RETRIES] + 1, now
	wait(q, id, r, wRETRY, o[DELAY])
end

-- ackplain acks a job of which only its fence is written. What it gets is put in lists
-- that need no look at what was changed before.
local function ackplain(q, id, fence, c, p)
	p.run[#p.run + 1], q.left[c[CTOKEN]] = id, (q.left[c[CTOKEN]] or 0) + 1
	if c[CRETAIN] < 0 then
		p.gone[#p.gone + 1] = id
		return
	end
	if p.claim ~= c then
		p.claim, p.short = c, short(sCOMPLETED, c[CAT], c[CWORKER], now)
		p.due = string.format('%.0f', now + c[CRETAIN])
	end
	local n = #p.set
	p.set[n + 1], p.set[n + 2] = id, p.short .. pack(fence)
	p.done[n + 1], p.done[n + 2] = p.now, id
	p.purge[n + 1], p.purge[n + 2] = p.due, id
end

local function flushplain(q, p)
	chunked('ZREM', q.k[RUN], p.run, STEP)
	chunked('HDEL', q.k[BODY], p.gone, STEP)
	chunked('HSET', q.k[STATE], p.set, 2 * STEP)
	chunked('ZADD', q.k[DONE], p.done, 2 * STEP)
	chunked('ZADD', q.k[PURGE], p.purge, 2 * STEP)
end

-- ackmost deals with the outcomes that are plain acks of jobs that have no records, which
-- most are, and returns the others, and those accepted by ID. Of one job they stay in order.
local function ackmost(q, outcomes)
	local ids, rest, done, seen = {}, {}, {}, {}
	local p = {run = {}, gone = {}, set = {}, done = {}, purge = {}, now = string.format('%.0f', now)}
	for i, o in ipairs(outcomes) do ids[i] = o[ID] end
	local states, fences = call('HMGET', q.k[STATE], unpack(ids)), call('ZMSCORE', q.k[RUN], unpack(ids))
	for i, o in ipairs(outcomes) do
		local id, fence = ids[i], o[REF]
		local plain = o[VERB] == ACK and not o[PAYLOAD] and not states[i] and not seen[id]
		local c = plain and fences[i] and tonumber(fences[i]) == fence and claimof(q, fence)
		seen[id] = true
		if c then
			done[id] = o
			ackplain(q, id, fence, c, p)
		else
			rest[#rest + 1] = o
		end
	end
	flushplain(q, p)
	return rest, done
end

local function settle(q, outcomes)
	local done -- has the accepted outcomes of this call by ID
	outcomes, done = ackmost(q, outcomes)
	if #outcomes == 0 then return flush(q) end
	local ids = {}
	for i, o in ipairs(outcomes) do ids[i] = o[ID] end
	load(q, ids)
	for _, o in ipairs(outcomes) do
		local id, fence, verb = o[ID], o[REF], o[VERB]
		local r, same = q.rec[id], done[id]
		while same and (same[REF] ~= fence or same[VERB] ~= verb) do same = same.before end
		if r and r[STAT] == sRUNNING and r[FENCE] == fence then
			settleone(q, id, r, o)
		elseif not same and not (r and fence > 0 and r[LASTFENCE] == fence and r[LASTVERB] == verb)
			and not (not r and o[REPEAT] == 1 and not q.bad[id]) then
			lost[#lost + 1] = o[PLACE]
			fence = nil
		end
		if fence then
			o.before = done[id]
			done[id] = o
		end
	end
	flush(q)
end

local function add(q, id, state, body, failed, progress)
	local n = #jobs
	jobs[n + 1], jobs[n + 2], jobs[n + 3], jobs[n + 4] = q.n, id, state, body
	jobs[n + 5] = failed == 1 and call('HGET', q.k[EXTRA], 'f' .. id) or ''
	jobs[n + 6] = progress == 1 and call('HGET', q.k[EXTRA], 'p' .. id) or ''
end

local function idsof(packed)
	local ids = {}
	for i = 1, #packed / 16 do ids[i] = sub(packed, 16 * i - 15, 16 * i) end
	return ids
end

-- running lists the jobs that run under the token, in the order of their claims.
local function running(q)
	local ids, found = idsof(hget(q, INFO, 'i' .. args.token) or ''), {}
	load(q, ids)
	for _, id in ipairs(ids) do
		local r = q.rec[id]
		if r and r[STAT] == sRUNNING and r[TOKEN] == args.token then found[#found + 1] = id end
	end
	table.sort(found, function(a, b) return q.rec[a][FENCE] < q.rec[b][FENCE] end)
	return found
end

local function again(q)
	for _, id in ipairs(running(q)) do
		local r = q.rec[id]
		add(q, id, stateof(q, id, r), call('HGET', q.k[BODY], id), r[FAILED], r[PROGRESS])
	end
end

-- run makes a record Running.
local function run(q, id, r)
	q.fence = q.fence + 1
	r[STAT], r[WHY], r[FENCE], r[TOKEN], r[WORKER] = sRUNNING, 0, q.fence, args.token, args.worker
	r[CLAIMED], r[UNTIL], r[ATTEMPT] = now, now + (r[OWNLEASE] > 0 and r[OWNLEASE] or args.lease), r[ATTEMPT] + 1
	if r[STARTED] == 0 then r[STARTED] = now end
	if r[UMODE] == uCLAIMED then dropkey(q, id, r) end
	if r[BEFORE] > 0 then zput(q, EXPIRE, id, false) end
	if r[PROGRESS] == 1 then
		r[PROGRESS] = 0
		hput(q, EXTRA, 'p' .. id, false)
	end
end

-- note enters a job in its claim.
local function note(q, claim, id, till)
	local n = claim.n + 1
	claim.n, claim.ids[n] = n, id
	claim.first = math.min(claim.first or till, till)
	claim.run[2 * n - 1], claim.run[2 * n] = q.fence, id
end

-- runplain makes a job Running that was never claimed. Its fence is all that is written
-- and told of it: the rest is in the head of its body, and the same for its claim.
local function runplain(q, claim, id, r, body)
	q.fence = q.fence + 1
	local own = r[OWNLEASE] or 0
	local till = now + (own > 0 and own or args.lease)
	note(q, claim, id, till)
	add(q, id, q.fence, body, 0, 0)
end

-- runother claims a job of which there is more to say, if it still can be.
local function runother(q, claim, id, r, body)
	if not r then
		wrecked[#wrecked + 1], wrecked[#wrecked + 2] = q.n, id
		return wreck(q, id, body)
	end
	if r[STAT] > sREADY then return end
	r[STAT] = sREADY
	if r[BEFORE] > 0 and r[BEFORE] <= now then
		zput(q, EXPIRE, id, false)
		return finish(q, id, r, sCANCELED, wEXPIRED)
	end
	run(q, id, r)
	note(q, claim, id, r[UNTIL])
	local failed, state = r[FAILED], encode(r)
	local n = #claim.set
	claim.set[n + 1], claim.set[n + 2] = id, state
	add(q, id, state, body, failed, 0)
end

-- isplain reports whether a job may have no record while it runs: it shares with the others
-- of its claim what is noted of that. It reads the head of a job that has no record.
local function isplain(claim, r)
	if #r > OWNLEASE or claim.old ~= '' then return false end
	claim.retain = claim.retain or r[RETAIN]
	return claim.retain == r[RETAIN]
end

-- heads returns the heads of bodies that have no record beside them. It fails if one can't be
-- read, since a look at each takes longer.
local function heads(bodies, states)
	local all = {}
	for i, body in ipairs(bodies) do all[i] = body and not states[i] and head(body) end
	return all
end

-- take claims what was popped from the ready set. What changed is written later, so a job
-- that something has entered twice must not be looked at again.
local function take(q, popped, claim)
	local ids = {}
	for i = 1, #popped, 2 do
		local id = idofready(popped[i])
		if not claim.seen[id] then
			claim.seen[id] = true
			ids[#ids + 1] = id
		end
	end
	if #ids == 0 then return end
	local bodies, states = call('HMGET', q.k[BODY], unpack(ids)), call('HMGET', q.k[STATE], unpack(ids))
	local fences = call('ZMSCORE', q.k[RUN], unpack(ids))
	local all = try(heads, bodies, states)
	for i, id in ipairs(ids) do
		local body, state = bodies[i], states[i]
		if not body then
			if state then lose(q, id, state) end
		elseif state then
			if not isshort(state) then runother(q, claim, id, decode(state), body) end -- else it was acked
		elseif not fences[i] then
			local r = all and all[i] or try(head, body)
			if r and isplain(claim, r) then
				runplain(q, claim, id, r, body)
			else
				runother(q, claim, id, try(complete, r), body)
			end
		end
	end
end

-- enter writes what a claim changed.
local function enter(q, claim)
	chunked('HSET', q.k[STATE], claim.set, 2 * STEP)
	chunked('ZADD', q.k[RUN], claim.run, 2 * STEP)
	if #claim.old > 0 then
		claim.first = math.min(claim.first, tonumber(call('ZSCORE', q.k[LEASE], args.token) or claim.first))
	end
	if claim.retain then
		local first = q.fence - claim.n + 1
		hput(q, INFO, 'c' .. args.token, pack({first, claim.n, now, args.lease, args.worker, claim.retain}))
		zput(q, CLAIM, args.token, first)
	end
	hput(q, INFO, 'i' .. args.token, claim.old .. table.concat(claim.ids))
	hput(q, INFO, 'n' .. args.token, claim.n + #claim.old / 16)
	zput(q, LEASE, args.token, claim.first)
	q.newfence = true
end

-- claim takes up to max jobs of a queue, and reports whether it has to be called
-- again because it found thousands that are too late.
local function claim(q, max)
	local c = {n = 0, seen = {}, ids = {}, set = {}, run = {}, old = table.concat(running(q))}
	q.fence = math.max(q.fence, now)
	local looks = 0
	while c.n < max and looks < MAXPOPPED do
		local popped = call('ZPOPMIN', q.k[READY], max - c.n)
		if #popped == 0 then break end
		looks = looks + #popped / 2
		take(q, popped, c)
	end
	if c.n > 0 then enter(q, c) end
	q.got = c.n
	return c.n < max and looks >= MAXPOPPED
end

-- room notes that the claimer would take more, or that it would not.
local function room(q, more)
	if args.store == '' then return end
	local field = args.store .. ' ' .. args.worker
	if more > 0 then
		call('HSET', q.k[IDLE], field, more)
	else
		call('HDEL', q.k[IDLE], field)
	end
end

for n, section in ipairs(args.queues) do
	local q = open(n - 1)
	q.n, queues[n] = n, q
end
for n, section in ipairs(args.queues) do
	if #section.outcomes > 0 then settle(queues[n], section.outcomes) end
end

if args.how == AGAIN or args.how == ONLYAGAIN then
	for _, q in ipairs(queues) do again(q) end
end
-- Shards of one queue share what is asked of it. 0 is asked of what is only settled.
local asks = args.asks
asks[0] = 0
local left, nextdue, unready, ready = args.max, 0, 0, 0
if args.how ~= 0 and args.how ~= ONLYAGAIN and #jobs == 0 then
	for n, section in ipairs(args.queues) do
		local q = queues[n]
		local ask = section.ask
		if asks[ask] > 0 and not q.paused then
			local expired = expire(q, STEP)
			local count = 0
			repeat
				local some = promote(q, STEP)
				count = count + some
			until some < STEP or count >= MAXPROMOTED
			if count >= MAXPROMOTED then
				unready = 1
				break
			end
			if args.how == LOOK then
				ready = ready + call('ZCARD', q.k[READY])
			else
				local more = claim(q, math.min(asks[ask], left))
				left, asks[ask] = left - q.got, asks[ask] - q.got
				flush(q)
				if more then
					unready = 1
					break
				end
			end
			local due = first(q, LATER)
			if due then nextdue = math.min(nextdue > 0 and nextdue or due - now, due - now) end
			if left == 0 then break end
		end
	end
	for n, section in ipairs(args.queues) do
		-- Of what a look has found the caller will take what it wants.
		if section.ask > 0 and unready == 0 and ready == 0 then
			room(queues[n], math.min(left, asks[section.ask]) + args.spare)
		end
	end
end
for _, q in ipairs(queues) do
	-- Jobs that are left may be for claimers that were not told yet.
	if args.how ~= 0 and args.how ~= LOOK and not q.paused then q.fresh = call('ZCARD', q.k[READY]) end
	q.quiet = args.how ~= 0
	close(q)
end
return {lost, jobs, left == 0 and 0 or math.max(nextdue, 0), unready, ready, now, wrecked}
