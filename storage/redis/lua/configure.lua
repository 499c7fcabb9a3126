-- Pauses or resumes a queue.

local q = open(0)
hput(q, INFO, 'known', 1)
hput(q, INFO, 'paused', args.paused == 1 and 1)
close(q)
publish(args.channel, (args.paused == 1 and 'P0 ' or 'R0 ') .. name(q))
return 1
