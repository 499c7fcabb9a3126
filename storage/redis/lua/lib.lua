-- What all scripts share. A script works on one or more queues, whose keys come
-- in KEYS in the order below. It reads what it needs, changes records in memory,
-- and writes all changes at the end (flush), so that nothing is half done. Records and
-- wake-ups are in files of their own.

-- Keys of a queue. Go's keys.go has the same list.
local BODY, STATE, EXTRA, READY, LATER, RUN, DONE, BURIED, CANCELED, PURGE, EXPIRE, LEASE, UNIQUE, INFO, IDLE, CLAIM =
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
local NKEYS = 16

-- Fields of a record. Go's record.go has the same list. A field that is 0 is not
-- set; trailing ones are not stored.
local STAT, PRIO, RUNAT, SEQ, CREATED, RETAIN, MAXATT, MAXRES, OWNLEASE, ATTEMPT, FENCE, STARTED, CLAIMED, UNTIL,
	WORKER, TOKEN, LASTFENCE, LASTVERB, FINISHED, RESCUED, WHY, BEFORE, UKEY, UMODE, UWINDOW, HELD,
	RETRIES, RESCUES, RELEASES, SNOOZES, SKIPS, EXTENDS, KICKS, FAILED, RESULT, PROGRESS =
	1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
	27, 28, 29, 30, 31, 32, 33, 34, 35, 36
local NFIELDS = 36

-- Fields of a short record; Go's record.go has the same list. It is that of a job that was
-- claimed once, and maybe acked; what else there is to say is in the head of its body. AT is
-- when its lease expires, or when it was acked.
local SSTATE, SCLAIMED, SWORKER, SAT, SFENCE = 1, 2, 3, 4, 5
-- Fields of what is noted of a claim: its fences, and what is the same for its jobs.
local CFIRST, CCOUNT, CAT, CLEASE, CWORKER, CRETAIN, CTOKEN = 1, 2, 3, 4, 5, 6, 7

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
		k = k, rec = {}, bad = {}, dirty = {}, z = {}, h = {}, left = {}, retrying = 0, waiting = 0, fresh = 0, ended = {},
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

-- Commands that read, remove and write entries of a hash or a sorted set.
local HASH, ZSET = {'HGET', 'HDEL', 'HSET'}, {'ZSCORE', 'ZREM', 'ZADD'}
-- flushkey writes the changes of one key: what an entry gets, or false.
local function flushkey(q, i, set, commands)
	local key, add, rem, n, gone = q.k[i], {}, {}, 0, 0
	for entry, value in pairs(set) do
		remember(q, commands[1], key, entry)
		if not value then
			gone = gone + 1
			rem[gone] = entry
		elseif commands == HASH then
			add[n + 1], add[n + 2] = entry, value
			n = n + 2
		else
			add[n + 1], add[n + 2] = value, entry
			n = n + 2
		end
	end
	chunked(commands[2], key, rem, STEP)
	chunked(commands[3], key, add, 2 * STEP)
end

-- over forgets a claim of which no job runs any more.
local function over(q, token)
	for _, letter in ipairs({'n', 'i', 'c'}) do hput(q, INFO, letter .. token, false) end
	zput(q, CLAIM, token, false)
	zput(q, LEASE, token, false)
end

-- leave notes that n jobs of a claim do not run any more.
local function leave(q, token, n)
	local open = tonumber(hget(q, INFO, 'n' .. token) or 0) - n
	if open > 0 then return hput(q, INFO, 'n' .. token, open) end
	over(q, token)
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
	for i, set in pairs(q.z) do flushkey(q, i, set, ZSET) end
	for i, set in pairs(q.h) do flushkey(q, i, set, HASH) end
	q.z, q.h, q.rec, q.dirty, q.left, q.retrying = {}, {}, {}, {}, {}, 0
end
