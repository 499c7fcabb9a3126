-- Counts the jobs of queues.

local found = {}
for n = 1, args.queues do
	local q = open(n - 1)
	-- The longest due ready job: one look per priority in use.
	local oldest, above = now, '-inf'
	while true do
		local e = call('ZRANGEBYSCORE', q.k[READY], above, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
		if #e == 0 then break end
		oldest = math.min(oldest, readyat(e[1]) or oldest)
		above = '(' .. e[2]
	end
	local counts = {q.paused and 1 or 0, tonumber(call('HGET', q.k[INFO], 'retrying') or 0), now - oldest}
	for _, i in ipairs({LATER, READY, RUN, DONE, BURIED, CANCELED}) do counts[#counts + 1] = call('ZCARD', q.k[i]) end
	found[n] = counts
end
return found
