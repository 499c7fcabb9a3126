-- What all scripts share. A script works on one or more queues, whose keys come
-- in KEYS in the order below. It reads what it needs, changes records in memory,
-- and writes all changes at the end (flush), so that nothing is half done.

-- Keys of a queue. Go's keys.go has the same list.
local BODY, STATE, EXTRA, READY, LATER, RUN, DONE, BURIED, CANCELED, PURGE, EXPIRE, LEASE, UNIQUE, INFO, IDLE =
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
local NKEYS = 15

-- Fields of a record. Go's record.go has the same list. A field that is 0 is not
-- set; trailing ones are not stored.
local STAT, PRIO, RUNAT, SEQ, CREATED, RETAIN, MAXATT, MAXRES, OWNLEASE, ATTEMPT, FENCE, STARTED, CLAIMED, UNTIL,
	WORKER, TOKEN, LASTFENCE, LASTVERB, FINISHED, RESCUED, WHY, BEFORE, UKEY, UMODE, UWINDOW, HELD,
	RETRIES, RESCUES, RELEASES, SNOOZES, SKIPS, EXTENDS, KICKS, FAILED, RESULT, PROGRESS =
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
	27, 28, 29, 30, 31, 32, 33, 34, 35, 36
local NFIELDS = 36

-- States, reasons and unique modes, as Go numbers them.
local sSCHEDULED, sREADY, sRUNNING, sCOMPLETED, sBURIED, sCANCELED = 1, 2, 3, 4, 5, 6
local wRETRY, wRESCUE, wRELEASE, wSNOOZE, wSKIP, wATTEMPTS, wRESCUES, wBURY, wCANCEL, wEXPIRED, wDROPPED =
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local uCLAIMED, uWINDOW = 1, 2

-- Limits. STEP is far below the 8,000 values that unpack can return.
local STEP, MAXFAILURES = 1000, 10

local call, pack, spack, sub = redis.call, cmsgpack.pack, struct.pack, string.sub
local args = cmsgpack.unpack(ARGV[1])

local function realtime()
	local t = call('TIME')
	return t[1] * 1000000 + t[2]
end

local now = args.now > 0 and args.now or realtime()

-- whole lets open return a queue although it was divided. Only its jobs are
-- elsewhere: sweeps still forget it.
local whole = false

-- open begins the work on a queue. All are opened before anything is written.
local function open(n)
	local k = {}
	for i = 1, NKEYS do k[i] = KEYS[n * NKEYS + i] end
	local info = call('HMGET', k[INFO], 'seq', 'fence', 'paused', 'known', 'shards')
	if info[5] and not whole then
		error({err = 'PAWLSHARDS ' .. info[5] .. ' ' .. string.match(k[1], '{(.-)}')})
	end
	return {
		k = k, rec = {}, dirty = {}, z = {}, h = {}, left = {}, retrying = 0, waiting = 0, fresh = 0, ended = {},
		seq = tonumber(info[1] or 0), fence = tonumber(info[2] or 0), paused = info[3] == '1', known = info[4] == '1',
		shards = tonumber(info[5]),
	}
end

local function name(q) return string.match(q.k[1], '{(.-)}') end

local function zput(q, i, member, score)
	local t = q.z[i]
	if not t then t = {}; q.z[i] = t end
	t[member] = score
end

local function hput(q, i, field, value)
	local t = q.h[i]
	if not t then t = {}; q.h[i] = t end
	t[field] = value
end

local function hget(q, i, field)
	local t = q.h[i]
	if t and t[field] ~= nil then return t[field] end
	return call('HGET', q.k[i], field)
end

-- pad sets the fields that were not stored.
local function pad(r)
	for i = #r + 1, NFIELDS do r[i] = 0 end
	return r
end

-- encode returns the record as it is stored. The record can't be used afterwards.
local function encode(r)
	local n = #r
	while r[n] == 0 do
		r[n] = nil
		n = n - 1
	end
	return pack(r)
end

-- chunked calls a command with a long list of arguments, per at a time.
local function chunked(command, key, list, per)
	local n = #list
	if n <= per then
		if n > 0 then call(command, key, unpack(list)) end
		return
	end
	for i = 1, n, per do call(command, key, unpack(list, i, math.min(i + per - 1, n))) end
end

-- remember notes what a field or member was, so that revert can put it back.
local function remember(q, command, key, field)
	if q.log then q.log[#q.log + 1] = {command, key, field, call(command, key, field)} end
end

local function flushzset(q, i, set)
	local key, add, rem, a, b = q.k[i], {}, {}, 0, 0
	for member, score in pairs(set) do
		remember(q, 'ZSCORE', key, member)
		if score then
			add[a + 1], add[a + 2] = score, member
			a = a + 2
		else
			b = b + 1
			rem[b] = member
		end
	end
	chunked('ZREM', key, rem, STEP)
	chunked('ZADD', key, add, 2 * STEP)
end

local function flushhash(q, i, set)
	local key, add, rem, a, b = q.k[i], {}, {}, 0, 0
	for field, value in pairs(set) do
		remember(q, 'HGET', key, field)
		if value then
			add[a + 1], add[a + 2] = field, value
			a = a + 2
		else
			b = b + 1
			rem[b] = field
		end
	end
	chunked('HDEL', key, rem, STEP)
	chunked('HSET', key, add, 2 * STEP)
end

-- leave notes that n jobs of a claim do not run any more.
local function leave(q, token, n)
	local open = tonumber(hget(q, INFO, 'n' .. token) or 0) - n
	if open > 0 then return hput(q, INFO, 'n' .. token, open) end
	hput(q, INFO, 'n' .. token, false)
	hput(q, INFO, 'i' .. token, false)
	zput(q, LEASE, token, false)
end

-- flush writes all changes. Records must be loaded again afterwards.
local function flush(q)
	for token, n in pairs(q.left) do leave(q, token, n) end
	for id, r in pairs(q.dirty) do hput(q, STATE, id, encode(r)) end
	if q.retrying ~= 0 then
		hput(q, INFO, 'retrying', math.max(0, tonumber(hget(q, INFO, 'retrying') or 0) + q.retrying))
	end
	if q.newseq then hput(q, INFO, 'seq', q.seq) end
	if q.newfence then hput(q, INFO, 'fence', q.fence) end
	for i, set in pairs(q.z) do flushzset(q, i, set) end
	for i, set in pairs(q.h) do flushhash(q, i, set) end
	q.z, q.h, q.rec, q.dirty, q.left, q.retrying = {}, {}, {}, {}, {}, 0
end

-- Members of the ready and the later set sort as List and Claim say. That of
-- the later set tells all that a promotion needs.
local function readymember(r, id) return spack('>I7I6', r[RUNAT], r[SEQ]) .. id end

local function isretry(r) return r[WHY] == wRETRY or r[WHY] == wRESCUE end

local function latermember(r, id)
	return spack('>I6I2', r[SEQ], (r[PRIO] + 1000) * 2 + (isretry(r) and 1 or 0)) .. id
end

local function idofready(member) return sub(member, 14) end
local function idoflater(member) return sub(member, 9) end

-- promoted makes a record Ready that was promoted without being rewritten.
local function promoted(q, id, r)
	if r[STAT] == sSCHEDULED and r[RUNAT] <= now and not call('ZSCORE', q.k[LATER], latermember(r, id)) then
		r[STAT] = sREADY
	end
	return r
end

local function head(body)
	local _, r = cmsgpack.unpack_one(body, 0)
	return r
end

local function loadsome(q, ids)
	local states, missing = call('HMGET', q.k[STATE], unpack(ids)), {}
	for i, id in ipairs(ids) do
		if states[i] then
			q.rec[id] = promoted(q, id, pad(cmsgpack.unpack(states[i])))
		else
			missing[#missing + 1] = id
		end
	end
	if #missing == 0 then return end
	local bodies = call('HMGET', q.k[BODY], unpack(missing))
	for i, id in ipairs(missing) do
		q.rec[id] = bodies[i] and promoted(q, id, pad(head(bodies[i])))
	end
end

-- load reads the records of ids, in as few commands as possible. One that does
-- not exist is false.
local function load(q, ids)
	local some = {}
	for _, id in ipairs(ids) do
		if q.rec[id] == nil then
			some[#some + 1] = id
			if #some == STEP then
				loadsome(q, some)
				some = {}
			end
		end
	end
	if #some > 0 then loadsome(q, some) end
end

local function get(q, id)
	if q.rec[id] == nil then loadsome(q, {id}) end
	return q.rec[id]
end

-- windowend is until when a unique window keeps key and record of a final job.
local function windowend(r)
	if r[UKEY] == 0 or r[UMODE] ~= uWINDOW then return 0 end
	return r[FINISHED] + r[UWINDOW]
end

local function purgeat(r) return math.max(r[FINISHED] + math.max(r[RETAIN], 0), windowend(r)) end

-- holds reports whether a record holds its unique key.
local function holds(r) return r[HELD] == 1 and (r[STAT] < sCOMPLETED or now < windowend(r)) end

-- holder returns who holds a key, and its ID.
local function holder(q, key)
	local id = hget(q, UNIQUE, key)
	if not id then return nil end
	local r = get(q, id)
	if r and holds(r) then return r, id end
end

local function dropkey(q, id, r)
	if r[UKEY] == 0 or r[HELD] == 0 then return end
	r[HELD] = 0
	if hget(q, UNIQUE, r[UKEY]) == id then hput(q, UNIQUE, r[UKEY], false) end
end

-- index enters a record wherever its state says, or removes it from there. Every
-- change of a record is unlink, the change, and link or remove.
local function index(q, id, r, on)
	local s = r[STAT]
	if s == sREADY then
		zput(q, READY, readymember(r, id), on and r[PRIO])
	elseif s == sSCHEDULED then
		zput(q, LATER, latermember(r, id), on and r[RUNAT])
		if isretry(r) then q.retrying = q.retrying + (on and 1 or -1) end
	elseif s == sRUNNING then
		zput(q, RUN, id, on and r[FENCE])
		if not on then q.left[r[TOKEN]] = (q.left[r[TOKEN]] or 0) + 1 end
	elseif s == sBURIED then
		zput(q, BURIED, id, on and r[FINISHED])
	else
		zput(q, s == sCOMPLETED and DONE or CANCELED, id, on and r[FINISHED])
		zput(q, PURGE, id, on and purgeat(r))
	end
	if s <= sREADY then
		q.waiting = q.waiting + (on and 1 or -1)
		if r[BEFORE] > 0 then zput(q, EXPIRE, id, on and r[BEFORE]) end
	end
end

local function unlink(q, id, r) index(q, id, r, false) end

local function link(q, id, r)
	index(q, id, r, true)
	q.dirty[id] = r
	if r[STAT] == sREADY then
		q.fresh = q.fresh + 1
	elseif r[STAT] == sSCHEDULED then
		q.later = math.min(q.later or r[RUNAT], r[RUNAT])
	end
end

-- remove forgets a record that is unlinked.
local function remove(q, id, r)
	dropkey(q, id, r)
	q.rec[id], q.dirty[id] = false, nil
	hput(q, BODY, id, false)
	hput(q, STATE, id, false)
	if r[FAILED] == 1 then hput(q, EXTRA, 'f' .. id, false) end
	if r[RESULT] == 1 then hput(q, EXTRA, 'r' .. id, false) end
	if r[PROGRESS] == 1 then hput(q, EXTRA, 'p' .. id, false) end
end

-- finish ends a record that is unlinked.
local function finish(q, id, r, state, why)
	r[STAT], r[WHY], r[FINISHED], r[FENCE], r[UNTIL] = state, why, now, 0, 0
	if windowend(r) == 0 then dropkey(q, id, r) end
	if state ~= sBURIED and r[RETAIN] < 0 and windowend(r) <= now then return remove(q, id, r) end
	link(q, id, r)
end

-- wait makes a record that is unlinked wait for delay. Without one the caller
-- has set when it runs.
local function wait(q, id, r, why, delay)
	r[STAT], r[WHY], r[FENCE], r[UNTIL] = sREADY, why, 0, 0
	if delay > 0 then r[STAT], r[RUNAT] = sSCHEDULED, now + delay end
	link(q, id, r)
end

-- fail adds a failure to the history of a record.
local function fail(q, id, r, text, stack)
	local list = r[FAILED] == 1 and hget(q, EXTRA, 'f' .. id)
	list = list and cmsgpack.unpack(list) or {}
	if #list >= MAXFAILURES then table.remove(list, 1) end
	list[#list + 1] = {now, r[ATTEMPT], r[WORKER], text, stack}
	r[FAILED] = 1
	hput(q, EXTRA, 'f' .. id, pack(list))
end

-- expire ends up to limit waiting jobs whose StartBefore has come.
local function expire(q, limit)
	local ids = call('ZRANGEBYSCORE', q.k[EXPIRE], '-inf', now, 'LIMIT', 0, limit)
	if #ids == 0 then return 0 end
	load(q, ids)
	for _, id in ipairs(ids) do
		local r = q.rec[id]
		if r and r[STAT] <= sREADY then
			unlink(q, id, r)
			finish(q, id, r, sCANCELED, wEXPIRED)
		else
			zput(q, EXPIRE, id, false) -- an orphan
		end
	end
	flush(q)
	return #ids
end

-- promote moves up to limit due jobs from the later to the ready set, without a
-- look at their records.
local function promote(q, limit)
	local due = call('ZRANGEBYSCORE', q.k[LATER], '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)
	local n, add = #due / 2, {}
	if n == 0 then return 0 end
	for i = 1, n do
		local seq, mark = struct.unpack('>I6I2', due[2 * i - 1])
		local retry = mark % 2
		add[2 * i - 1] = (mark - retry) / 2 - 1000
		add[2 * i] = spack('>I7I6', due[2 * i], seq) .. idoflater(due[2 * i - 1])
		q.retrying = q.retrying - retry
	end
	call('ZREMRANGEBYRANK', q.k[LATER], 0, n - 1)
	chunked('ZADD', q.k[READY], add, 2 * STEP)
	if q.retrying ~= 0 then flush(q) end
	q.fresh = q.fresh + n
	return n
end

-- first is the least score of a set, nil if that is empty.
local function first(q, i)
	local f = call('ZRANGE', q.k[i], 0, 0, 'WITHSCORES')
	return f[2] and tonumber(f[2]), f[1]
end

-- broadcast tells all. It is for those who do not claim, so a message in some
-- milliseconds is enough.
local function broadcast(q, text)
	local t = realtime()
	if text == 'R0' then
		if t - tonumber(call('HGET', q.k[INFO], 'told') or 0) < 5000 then return end
		call('HSET', q.k[INFO], 'told', string.format('%.0f', t))
	end
	call('PUBLISH', args.channel, text .. ' ' .. name(q))
end

-- wakesome tells some claimers, and returns for how many jobs none was found.
local function wakesome(q, n, idle)
	for i = 1, #idle, 2 do
		call('HDEL', q.k[IDLE], idle[i])
		local to = string.match(idle[i], '^%S+')
		local heard = call('PUBLISH', args.channel .. ':' .. to, 'R0 ' .. name(q))
		-- On a cluster the receiver may be connected to another node.
		n = n - (heard > 0 and tonumber(idle[i + 1]) or args.cluster and 1 or 0)
		if n <= 0 then return n end
	end
	return n
end

-- wake tells of jobs that became claimable: only as many claimers as the jobs
-- keep busy, of those that a claim left with room. The claims that follow wake
-- more if jobs are left. Claimers that died are forgotten, some hundred at a time.
local function wake(q, n)
	if q.paused or n <= 0 then return end
	local idle = call('HRANDFIELD', q.k[IDLE], 8, 'WITHVALUES')
	if #idle == 0 then return not q.quiet and broadcast(q, 'R0') end
	for _ = 1, 16 do
		n = wakesome(q, n, idle)
		if n <= 0 then return end
		idle = call('HRANDFIELD', q.k[IDLE], 8, 'WITHVALUES')
		if #idle == 0 then return end
	end
end

-- tell publishes what the changes mean for others.
local function tell(q)
	for _, e in ipairs(q.ended) do
		call('PUBLISH', args.channel, 'E' .. string.format('%.0f', e[2]) .. ' ' .. name(q) .. ' ' .. e[1])
	end
	if q.fresh > 0 then wake(q, q.fresh) end
	-- A job due before all others moves the time that idle claimers sleep until.
	if q.later and not q.paused and first(q, LATER) == q.later then
		call('PUBLISH', args.channel, 'R' .. string.format('%.0f', math.max(q.later - now, 0)) .. ' ' .. name(q))
	end
end

local function close(q)
	flush(q)
	tell(q)
end
