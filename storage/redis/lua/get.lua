-- Reads jobs by ID. What is missing is empty, and so is a job whose payload is gone.

local q, found = open(0), {}
load(q, args.ids)
for _, id in ipairs(args.ids) do
	local r, n = q.rec[id], #found
	local body = r and call('HGET', q.k[BODY], id)
	if body then
		found[n + 1], found[n + 2], found[n + 3] = r[STAT], stateof(q, id, r), body
		found[n + 4] = r[FAILED] == 1 and call('HGET', q.k[EXTRA], 'f' .. id) or ''
		found[n + 5] = r[PROGRESS] == 1 and call('HGET', q.k[EXTRA], 'p' .. id) or ''
		found[n + 6] = r[RESULT] == 1 and call('HGET', q.k[EXTRA], 'r' .. id) or ''
	else
		found[n + 1], found[n + 2], found[n + 3] = 0, '', ''
		found[n + 4], found[n + 5], found[n + 6] = '', '', ''
	end
end
return found
