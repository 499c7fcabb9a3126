-- Changes jobs by hand.

local KICK, CANCEL, DELETE, RESCHEDULE, EDIT = 1, 2, 3, 4, 5
local DONE_, NOTFOUND, WRONGSTATE, CONFLICT = 1, 2, 3, 4
-- Fields of what a body says that only Go reads; Go's record.go has the same list.
local TIMEOUT, META = 2, 3

local function kick(q, id, r)
	if r[UKEY] ~= 0 and r[UMODE] ~= uCLAIMED then
		local _, who = holder(q, r[UKEY])
		if who and who ~= id then return CONFLICT, who end
		hput(q, UNIQUE, r[UKEY], id)
		r[HELD] = 1
	end
	unlink(q, id, r)
	r[STAT], r[WHY], r[RUNAT], r[ATTEMPT], r[RESCUED], r[BEFORE], r[FINISHED] = sREADY, 0, now, 0, 0, 0, 0
	r[KICKS] = r[KICKS] + 1
	if r[RESULT] == 1 then hput(q, EXTRA, 'r' .. id, false) end
	if r[PROGRESS] == 1 then hput(q, EXTRA, 'p' .. id, false) end
	r[RESULT], r[PROGRESS] = 0, 0
	link(q, id, r)
end

local function reschedule(q, id, r)
	unlink(q, id, r)
	r[RUNAT] = math.max(args.at > 0 and args.at or now + args.delay, now)
	r[STAT] = r[RUNAT] > now and sSCHEDULED or sREADY
	link(q, id, r)
end

local function rewrite(body, e)
	local from, first = cmsgpack.unpack_one(body, 0)
	local after, rest = cmsgpack.unpack_one(body, from)
	local payload = after > 0 and sub(body, after + 1) or ''
	if e.timeout then rest[TIMEOUT] = e.timeout end
	if e.meta then rest[META] = e.meta end
	return pack(first) .. pack(rest) .. (e.payload or payload)
end

-- edit reports whether there is a body that can be read.
local function edit(q, id, r)
	local e = args.edit
	if e.timeout or e.meta or e.payload then
		local body = try(rewrite, hget(q, BODY, id), e)
		if not body then return false end
		hput(q, BODY, id, body)
	end
	unlink(q, id, r)
	r[PRIO], r[OWNLEASE], r[MAXATT] = e.priority or r[PRIO], e.lease or r[OWNLEASE], e.attempts or r[MAXATT]
	r[BEFORE], r[RETAIN] = e.before or r[BEFORE], e.retention or r[RETAIN]
	link(q, id, r)
	return true
end

local function change(q, id)
	local r = get(q, id)
	if not r then return NOTFOUND, 0, '' end
	local before = r[STAT]
	if not args.from[before] then return WRONGSTATE, before, '' end
	if args.verb == KICK then
		local status, who = kick(q, id, r)
		return status or DONE_, before, who or ''
	end
	if before == sRUNNING then q.ended[#q.ended + 1] = {id, r[FENCE]} end
	if args.verb == RESCHEDULE then
		reschedule(q, id, r)
	elseif args.verb == EDIT then
		if not edit(q, id, r) then return NOTFOUND, 0, '' end
	else
		unlink(q, id, r)
		if args.verb == CANCEL then finish(q, id, r, sCANCELED, wCANCEL) else remove(q, id, r) end
	end
	return DONE_, before, ''
end

local q, changed = open(0), {}
load(q, args.ids)
for _, id in ipairs(args.ids) do
	local status, before, who = change(q, id)
	local n = #changed
	changed[n + 1], changed[n + 2], changed[n + 3] = status, before, who
end
close(q)
return changed
