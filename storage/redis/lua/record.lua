-- Records: what they say, where they are entered, and how they change. It follows lib.lua
-- in all scripts.

-- Members of the ready and the later set sort as List and Claim say. That of
-- the later set tells all that a promotion needs.
local function readymember(r, id) return spack('>I7I6', r[RUNAT], r[SEQ]) .. id end

local function isretry(r) return r[WHY] == wRETRY or r[WHY] == wRESCUE end

local function latermember(r, id)
	return spack('>I6I2', r[SEQ], (r[PRIO] + 1000) * 2 + (isretry(r) and 1 or 0)) .. id
end

-- marked returns what a member of the later set says besides its ID: place, priority with a
-- mark, and that mark, which is 1 for a retry. It says nothing if it is none of ours.
local function marked(member)
	if #member ~= 24 then return nil, 0, 0 end
	local seq, mark = struct.unpack('>I6I2', member)
	return seq, mark, mark % 2
end

-- readyat returns since when a member of the ready set is due, or nothing if it is none of ours.
local function readyat(member)
	if #member == 29 then return (struct.unpack('>I7', member)) end
end

local function idofready(member) return sub(member, 14) end
local function idoflater(member) return sub(member, 9) end

-- promoted makes a record Ready that was promoted without being rewritten. The clock may
-- have been set back since.
local function promoted(q, id, r)
	if r[STAT] == sSCHEDULED and not call('ZSCORE', q.k[LATER], latermember(r, id))
		and (r[RUNAT] <= now or call('ZSCORE', q.k[READY], readymember(r, id))) then
		r[STAT] = sREADY
	end
	return r
end

-- try returns what f returns, or false if it fails.
local function try(f, a, b)
	local sound, r = pcall(f, a, b)
	return sound and r
end

-- head returns the head of a body, as it is. This and the functions below down to decode fail
-- for what is no record, which only a foreign hand leaves.
local function head(body)
	local _, r = cmsgpack.unpack_one(body, 0)
	local most, own = 1e18, r[OWNLEASE] or 0
	if r[STAT] < most and r[RETAIN] < most and own < most then return r end
	error('NaN')
end

-- numbers fails if one of some fields is no number, or not a finite one. A comparison does that
-- by itself, where arithmetic would take a string of digits, and is false for NaN.
local function numbers(r, from, to)
	for i = from, to do
		local v = r[i]
		if not (v > -1e18 and v < 1e18) then error('NaN') end
	end
end

local function isstring(v) return v == 0 or type(v) == 'string' end

-- complete sets the fields that were not stored.
local function complete(r)
	numbers(r, STAT, math.min(#r, UNTIL))
	if #r > UNTIL then
		pad(r)
		numbers(r, LASTFENCE, BEFORE)
		numbers(r, UMODE, PROGRESS)
		if not (isstring(r[WORKER]) and isstring(r[TOKEN]) and isstring(r[UKEY])) then return false end
	end
	local s = r[STAT]
	return s % 1 == 0 and s >= sSCHEDULED and s <= sCANCELED and pad(r)
end

local function parse(text) return complete(head(text)) end

-- decode returns the record that a body or a record begins with, or false if it can't be read.
local function decode(text) return try(parse, text) end

-- isshort tells a short record from one that has all fields up to the last that is set.
local function isshort(state) return string.byte(state) == 149 end

-- short returns a short record without its last field, the fence.
local function short(state, claimed, worker, at) return '\149' .. pack(state, claimed, worker, at) end

local function parseshort(state)
	local s = cmsgpack.unpack(state)
	numbers(s, SSTATE, SCLAIMED)
	numbers(s, SAT, SFENCE)
	return s[SSTATE] == sCOMPLETED and isstring(s[SWORKER]) and s
end

local function parseclaim(noted)
	local c = cmsgpack.unpack(noted)
	numbers(c, CFIRST, CLEASE)
	numbers(c, CRETAIN, CRETAIN)
	return isstring(c[CWORKER]) and c
end

-- claimof returns what is noted of the claim that a fence is from, if it is.
local function claimof(q, fence)
	local c = q.claim
	if c and fence >= c[CFIRST] and fence < c[CFIRST] + c[CCOUNT] then return c end
	local token = call('ZREVRANGEBYSCORE', q.k[CLAIM], fence, '-inf', 'LIMIT', 0, 1)[1]
	local noted = token and call('HGET', q.k[INFO], 'c' .. token)
	c = try(parseclaim, noted)
	if not c then return nil end
	c[CTOKEN], q.claim = token, c
	return fence < c[CFIRST] + c[CCOUNT] and c or nil
end

-- fromhead makes the head of a body the record of its job, of which there is a short record,
-- or a fence, or neither.
local function fromhead(q, id, body, state, fence)
	local r = decode(body)
	if not r then return false end
	local c = not state and fence and claimof(q, tonumber(fence))
	if state then
		local s = try(parseshort, state)
		if not s then return false end
		r[STAT], r[ATTEMPT], r[STARTED], r[CLAIMED], r[WORKER] = s[SSTATE], 1, s[SCLAIMED], s[SCLAIMED], s[SWORKER]
		r[FINISHED], r[LASTFENCE], r[LASTVERB] = s[SAT], s[SFENCE], 1
	elseif c then
		r[STAT], r[ATTEMPT], r[FENCE], r[STARTED], r[CLAIMED] = sRUNNING, 1, tonumber(fence), c[CAT], c[CAT]
		r[UNTIL], r[WORKER], r[TOKEN] = c[CAT] + (r[OWNLEASE] > 0 and r[OWNLEASE] or c[CLEASE]), c[CWORKER], c[CTOKEN]
	else
		return promoted(q, id, r)
	end
	return r
end

-- enlist notes the record that was read of a job. One that can't be read is false, as if
-- there were none, and the job is bad.
local function enlist(q, id, r)
	q.rec[id] = r
	if not r then q.bad[id] = true end
end

local function fromstate(q, id, state)
	local r = decode(state)
	enlist(q, id, r and promoted(q, id, r))
end

-- recordof returns the record of a job whose body has been read.
local function recordof(q, id, body)
	if q.rec[id] == nil then
		local state = call('HGET', q.k[STATE], id)
		if state and not isshort(state) then
			fromstate(q, id, state)
		else
			enlist(q, id, fromhead(q, id, body, state, call('ZSCORE', q.k[RUN], id)))
		end
	end
	return q.rec[id]
end

-- stateof is what there is to say of a record that the head of its body does not.
local function stateof(q, id, r)
	local state = call('HGET', q.k[STATE], id)
	if not state and r[STAT] == sRUNNING then
		state = short(sRUNNING, r[CLAIMED], r[WORKER], r[UNTIL]) .. pack(r[FENCE])
	end
	return state or ''
end

local function loadsome(q, ids)
	local states, some, shorts = call('HMGET', q.k[STATE], unpack(ids)), {}, {}
	for i, id in ipairs(ids) do
		if states[i] and not isshort(states[i]) then
			fromstate(q, id, states[i])
		else
			some[#some + 1] = id
			shorts[#some] = states[i]
		end
	end
	if #some == 0 then return end
	local bodies, fences = call('HMGET', q.k[BODY], unpack(some)), call('ZMSCORE', q.k[RUN], unpack(some))
	for i, id in ipairs(some) do
		if bodies[i] then
			enlist(q, id, fromhead(q, id, bodies[i], shorts[i], fences[i]))
		else
			q.rec[id] = false
		end
	end
end

-- load reads the records of ids, in as few commands as possible. One that does
-- not exist, or can't be read, is false.
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

-- scrap forgets what is left of a job that has no record, or none that can be read, and that
-- must not become one that waits.
local function scrap(q, id)
	hput(q, BODY, id, false)
	hput(q, STATE, id, false)
	for _, letter in ipairs({'f', 'r', 'p'}) do hput(q, EXTRA, letter .. id, false) end
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
	local list = r[FAILED] == 1 and try(cmsgpack.unpack, hget(q, EXTRA, 'f' .. id))
	if type(list) ~= 'table' then list = {} end
	if #list >= MAXFAILURES then table.remove(list, 1) end
	list[#list + 1] = {now, r[ATTEMPT], r[WORKER], text, stack}
	r[FAILED] = 1
	hput(q, EXTRA, 'f' .. id, pack(list))
end

-- wreck buries a job whose record can't be read, so that it is seen: with the settings that it
-- was enqueued with, if its head can be read. There may be a history, a result and a progress.
local function wreck(q, id, body)
	local r = decode(body) or pad({sREADY, 0, now, 0, now})
	r[FAILED], r[RESULT], r[PROGRESS] = 1, 1, 1
	q.rec[id] = r
	fail(q, id, r, 'pawl/redis: the record was damaged', '')
	finish(q, id, r, sBURIED, wBURY)
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
	local n, m, add = #due / 2, 0, {}
	if n == 0 then return 0 end
	for i = 1, 2 * n, 2 do
		local seq, mark, retry = marked(due[i])
		if seq then
			add[m + 1], add[m + 2] = (mark - retry) / 2 - 1000, spack('>I7I6', due[i + 1], seq) .. idoflater(due[i])
			m = m + 2
			q.retrying = q.retrying - retry
		end
	end
	call('ZREMRANGEBYRANK', q.k[LATER], 0, n - 1)
	chunked('ZADD', q.k[READY], add, 2 * STEP)
	if q.retrying ~= 0 then flush(q) end
	q.fresh = q.fresh + m / 2
	return n
end
