-- Reads a piece of one state of one queue, in order, from after a position on.

-- Bytes of bodies, about, that one call reads: there is no way to read a part of one.
local MAXREAD = 1048576

local sets = {LATER, READY, RUN, DONE, BURIED, CANCELED}
local q = open(0)
local key = q.k[sets[args.state]]

-- before reports whether member a sorts before b. Strings are compared by byte,
-- whatever the locale of the server is.
local function before(a, b)
	for i = 1, math.min(#a, #b) do
		local x, y = string.byte(a, i), string.byte(b, i)
		if x ~= y then return x < y end
	end
	return #a < #b
end

-- past reports whether the entry at a rank is beyond the position.
local function past(rank)
	local e = call('ZRANGE', key, rank, rank, 'WITHSCORES')
	local score = tonumber(e[2])
	return score > args.score or score == args.score and before(args.member, e[1])
end

-- search finds the rank of the first entry beyond the position. The position need
-- not be that of an entry that is still there.
local function search()
	local low, high = 0, call('ZCARD', key)
	while low < high do
		local mid = math.floor((low + high) / 2)
		if past(mid) then high = mid else low = mid + 1 end
	end
	return low
end

local function idof(member)
	if args.state == sREADY then return idofready(member) end
	if args.state == sSCHEDULED then return idoflater(member) end
	return member
end

-- visible is a body, without its payload if that was not asked for.
local function visible(body)
	if args.payloads == 1 then return body end
	local sound, from = pcall(cmsgpack.unpack_one, body, 0)
	local after = 0
	if sound then sound, after = pcall(cmsgpack.unpack_one, body, from) end
	return sound and after > 0 and sub(body, 1, after) or body
end

local from = args.after == 1 and search() or 0
local entries = call('ZRANGE', key, from, from + args.count - 1, 'WITHSCORES')
local found, bytes, more = {}, 0, #entries == 2 * args.count and 1 or 0
for i = 1, #entries, 2 do
	local id = idof(entries[i])
	local size = call('HSTRLEN', q.k[BODY], id)
	if bytes > 0 and bytes + size > math.min(args.bytes, MAXREAD) then
		more = 1
		break
	end
	local body = call('HGET', q.k[BODY], id)
	local n, r = #found, body and recordof(q, id, body)
	found[n + 1], found[n + 2], found[n + 3] = entries[i + 1], entries[i], id
	found[n + 4], found[n + 5], found[n + 6], found[n + 7], found[n + 8] = '', '', '', '', ''
	if r then
		found[n + 4] = stateof(q, id, r)
		found[n + 5] = visible(body)
		found[n + 6] = r[FAILED] == 1 and call('HGET', q.k[EXTRA], 'f' .. id) or ''
		found[n + 7] = r[PROGRESS] == 1 and call('HGET', q.k[EXTRA], 'p' .. id) or ''
		if args.payloads == 1 and r[RESULT] == 1 then
			found[n + 8] = call('HGET', q.k[EXTRA], 'r' .. id) or ''
		end
		bytes = bytes + size + #found[n + 8]
	end
end
return {more, found}
