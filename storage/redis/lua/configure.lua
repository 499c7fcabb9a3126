-- Pauses or resumes a queue.

local q = open(0)
hput(q, INFO, 'known', 1)
if args.paused == 1 then
	hput(q, INFO, 'paused', 1)
else
	hput(q, INFO, 'paused', false)
end
close(q)
q.paused = false
if args.paused == 1 then
	call('PUBLISH', args.channel, 'P0 ' .. name(q))
	return 1
end
call('PUBLISH', args.channel, 'R0 ' .. name(q))
return 1
