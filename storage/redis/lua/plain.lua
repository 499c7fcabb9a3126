-- Stores requests that differ in nothing but their IDs and what need not be read of them,
-- as those of most calls. It comes before the library, and most calls end before that: to
-- make the functions of the library takes longer than to store a job.

-- A section has six keys of its queue, in the order of lib.lua's BODY, STATE, READY, LATER,
-- INFO and IDLE.
local NKEYSHERE = 6
-- Arguments of a section, after which comes what need not be read of its requests, one for
-- each; Go's plain.go has the same list. ALLIDS is all IDs in one string. TOP, URGENT and
-- TERMS are parts of the heads of jobs, as they are stored.
local KNOWN, ALLIDS, WAIT, WHEN, URGENCY, TOP, URGENT, TERMS, WIDTH = 0, 1, 2, 3, 4, 5, 6, 7, 8

local call, spack, sub = redis.call, struct.pack, string.sub
local queues, unknown, exist, places, arg = {}, {}, {}, 0, 3
local now, loud = tonumber(ARGV[2]), ARGV[2] ~= '0'
if now == 0 then
	local t = call('TIME')
	now = t[1] * 1000000 + t[2]
end

for n = 1, #KEYS / NKEYSHERE do
	local got = call('HMGET', KEYS[NKEYSHERE * n - 1], 'seq', 'paused', 'known', 'told', 'shards')
	if got[5] then error({err = 'PAWLSHARDS ' .. got[5] .. ' ' .. string.match(KEYS[NKEYSHERE * n], '{(.-)}')}) end
	if not got[3] and ARGV[arg + KNOWN] == '0' then unknown[#unknown + 1] = n end
	queues[n] = {seq = tonumber(got[1] or 0), paused = got[2] == '1', known = got[3], told = tonumber(got[4] or 0), from = arg}
	arg = arg + WIDTH + #ARGV[arg + ALLIDS] / 16
end
if #unknown > 0 then return {'unknown', unknown} end

-- storesome stores the requests of a queue behind the first so many. What is the same for all
-- is put together once: the head of a job is around its place in the order, and so is its entry.
local function storesome(q, behind, at, count, body, state, ready, later)
	local s, seq, n = q.from, q.seq, 0
	local order, mark, pad = '>I4', '\206', '\0\0'
	if seq > 4294900000 then order, mark, pad = '>I6', '\207\0\0', '' end
	local urgency, stamp = ARGV[s + URGENCY], spack('>BI8', 207, now) .. ARGV[s + TERMS]
	local top = ARGV[s + TOP] .. (at > now and '\1' or '\2') .. ARGV[s + URGENT] .. spack('>BI8', 207, at) .. mark
	local score, left, right = urgency, spack('>I7', at) .. pad, ''
	if at > now then score, left, right = string.format('%.0f', at), pad, spack('>I2', (urgency + 1000) * 2) end
	local ids, bodies, heads, entries, seen = {}, {}, {}, {}, q.seen or {}
	for i = 1, count do ids[i] = sub(ARGV[s + ALLIDS], 16 * (behind + i) - 15, 16 * (behind + i)) end
	local there = call('HMGET', body, unpack(ids))
	for i, id in ipairs(ids) do
		if there[i] or seen[id] then
			exist[#exist + 1] = places + behind + i
		else
			seq = seq + 1
			local packed, rest = spack(order, seq), ARGV[s + WIDTH + behind + i - 1]
			local head = top .. packed .. stamp
			bodies[n + 1], bodies[n + 2] = id, head .. rest
			entries[n + 1], entries[n + 2] = score, left .. packed .. right .. id
			if #rest >= BIG then heads[#heads + 1], heads[#heads + 2] = id, head end
			seen[id], n = true, n + 2
		end
	end
	if n == 0 then return end
	call('HSET', body, unpack(bodies))
	if #heads > 0 then call('HSET', state, unpack(heads)) end
	call('ZADD', at > now and later or ready, unpack(entries))
	q.seen, q.seq = seen, seq
end

for n, q in ipairs(queues) do
	local body, state, ready, later, info, idle = unpack(KEYS, NKEYSHERE * n - 5, NKEYSHERE * n)
	local fixed, seq, count = tonumber(ARGV[q.from + WHEN]), q.seq, #ARGV[q.from + ALLIDS] / 16
	local at = math.max(fixed > 0 and fixed or now + ARGV[q.from + WAIT], now)
	for behind = 0, count - 1, STEP do
		storesome(q, behind, at, math.min(STEP, count - behind), body, state, ready, later)
	end
	places, q.fresh = places + count, q.seq - seq
	if q.fresh > 0 then
		call('HSET', info, 'seq', q.seq, 'known', 1)
		if at > now then q.later, q.fresh = at, 0 end
		local since = now - q.told
		loud = loud or q.later or since < 0 or since >= TOLD or call('HLEN', idle) > 0
	elseif not q.known then
		call('HSET', info, 'known', 1)
	end
end
if not loud then return {'ok', exist} end

-- library

for n, q in ipairs(queues) do
	local body, _, _, later, info, idle = unpack(KEYS, NKEYSHERE * n - 5, NKEYSHERE * n)
	q.k, q.ended = {[BODY] = body, [LATER] = later, [INFO] = info, [IDLE] = idle}, {}
	tell(q)
end
return {'ok', exist}
