-- Extends claims.

-- Fields of a renewal; Go's extend.go has the same list.
local PLACE, ID, REF, SPAN, REPORT = 1, 2, 3, 4, 5

local lost = {}

local function extend(q, renewals)
	local ids, first = {}, {}
	for i, n in ipairs(renewals) do ids[i] = n[ID] end
	load(q, ids)
	for _, n in ipairs(renewals) do
		local id = n[ID]
		local r = q.rec[id]
		if r and r[STAT] == sRUNNING and r[FENCE] == n[REF] then
			r[UNTIL], r[EXTENDS] = now + n[SPAN], r[EXTENDS] + 1
			first[r[TOKEN]] = math.min(first[r[TOKEN]] or r[UNTIL], r[UNTIL])
			if n[REPORT] ~= '' then
				r[PROGRESS] = 1
				hput(q, EXTRA, 'p' .. id, spack('>I8', now) .. n[REPORT])
			end
			q.dirty[id] = r
		else
			lost[#lost + 1] = n[PLACE]
		end
	end
	flush(q)
	-- A lease that became shorter moves the time of the next look at its claim. One
	-- that became longer does not: that look finds out.
	for token, at in pairs(first) do call('ZADD', q.k[LEASE], 'XX', 'LT', at, token) end
end

local queues = {}
for n in ipairs(args.queues) do queues[n] = open(n - 1) end
for n, section in ipairs(args.queues) do extend(queues[n], section.renewals) end
return lost
