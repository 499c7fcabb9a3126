-- Divides a queue that holds nothing, for good. Returns how many shards it has.

whole = true
local q = open(0)
if q.shards then return q.shards end
if q.paused then return -1 end
for i = BODY, CANCELED do
	if call('EXISTS', q.k[i]) == 1 then return -1 end
end
call('HSET', q.k[INFO], 'shards', args.shards)
return args.shards
