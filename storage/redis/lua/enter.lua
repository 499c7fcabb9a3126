-- Enters fields in a hash, also while the memory is full: HSET or HSETNX, then each field
-- and its value in turn.
for i = 2, #ARGV, 2 do redis.call(ARGV[1], KEYS[1], ARGV[i], ARGV[i + 1]) end
return 1
