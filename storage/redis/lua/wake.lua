-- What is told to others when a script ends. It follows record.lua in all scripts.

-- first is the least score of a set, nil if that is empty.
local function first(q, i)
	local f = call('ZRANGE', q.k[i], 0, 0, 'WITHSCORES')
	return f[2] and tonumber(f[2]), f[1]
end

-- publish returns how many have heard. What they are told is a hint, so a user that may
-- not publish does not make a script fail that has done its work.
local function publish(channel, text)
	local heard = redis.pcall('PUBLISH', channel, text)
	return type(heard) == 'number' and heard or 0
end

-- For so many microseconds all count as told of a queue.
local TOLD = 5000

-- broadcast tells all. It is for those who do not claim, so a message in some
-- milliseconds is enough, unless the clock was set back.
local function broadcast(q)
	local t = args.now > 0 and realtime() or now
	local since = t - tonumber(call('HGET', q.k[INFO], 'told') or 0)
	if since >= 0 and since < TOLD then return end
	call('HSET', q.k[INFO], 'told', string.format('%.0f', t))
	publish(args.channel, 'R0 ' .. name(q))
end

-- wakesome tells some claimers, and returns for how many jobs none was found.
local function wakesome(q, n, idle)
	for i = 1, #idle, 2 do
		call('HDEL', q.k[IDLE], idle[i])
		local to = string.match(idle[i], '^%S+')
		local heard = publish(args.channel .. ':' .. to, 'R0 ' .. name(q))
		-- On a cluster the receiver may be connected to another node.
		n = n - (heard > 0 and tonumber(idle[i + 1]) or args.cluster and 1 or 0)
		if n <= 0 then return n end
	end
	return n
end

-- wake tells of jobs that became claimable: only as many claimers as the jobs
-- keep busy, of those that a claim left with room. The claims that follow wake
-- more if jobs are left. Claimers that died are forgotten, some hundred at a time; if
-- no other was found, all are told.
local function wake(q, n)
	if q.paused or n <= 0 then return end
	local idle = call('HRANDFIELD', q.k[IDLE], 8, 'WITHVALUES')
	if #idle == 0 then return not q.quiet and broadcast(q) end
	local left = n
	for _ = 1, 16 do
		left = wakesome(q, left, idle)
		if left <= 0 then return end
		idle = call('HRANDFIELD', q.k[IDLE], 8, 'WITHVALUES')
		if #idle == 0 then break end
	end
	if left == n and (#idle > 0 or not q.quiet) then publish(args.channel, 'R0 ' .. name(q)) end
end

-- tell publishes what the changes mean for others.
local function tell(q)
	for _, e in ipairs(q.ended) do
		publish(args.channel, 'E' .. string.format('%.0f', e[2]) .. ' ' .. name(q) .. ' ' .. e[1])
	end
	if q.fresh > 0 then wake(q, q.fresh) end
	-- A job due before all others moves the time that idle claimers sleep until.
	if q.later and not q.paused and first(q, LATER) == q.later then
		publish(args.channel, 'R' .. string.format('%.0f', math.max(q.later - now, 0)) .. ' ' .. name(q))
	end
end

local function close(q)
	flush(q)
	tell(q)
end
