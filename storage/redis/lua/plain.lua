-- Stores requests that are all plain, as most calls have them: enqueue.lua without what
-- takes time even if no request has it.

local queues, receipts, unknown = {}, {}, {}
for n, section in ipairs(args.queues) do queues[n] = enter(n, section, unknown) end
if #unknown > 0 then return {'unknown', unknown} end

for n, section in ipairs(args.queues) do
	local q, reqs = queues[n], section.reqs
	present(q, reqs)
	for _, req in ipairs(reqs) do
		if q.rec[req[ID]] == false then
			storeplain(q, req)
			receipts[#receipts + 1] = STORED
		else
			receipts[#receipts + 1], receipts[#receipts + 2] = EXISTS, req[ID]
		end
	end
end
for _, q in ipairs(queues) do
	flushplain(q)
	if q.newseq or not q.known then call('HSET', q.k[INFO], 'seq', q.seq, 'known', 1) end
	tell(q)
end
return {'ok', receipts}
