"""The Lua scripts of shared limits. Each names one key, so that it works on a Redis Cluster.

Numbers are sent back as text with 17 digits, because Redis cuts the fraction of a number that a script returns.
"""

HEARTBEAT = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local me, anchor, life, known = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local process = ARGV[5]
local budget, last, members, n = now, now, {}, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local first, second, owner = string.match(fields[i + 1], '(%S+) (%S+) ?(%S*)')
  first, second = tonumber(first), tonumber(second)
  if fields[i] == 'budget' then
    budget, last = first, second
  else
    local id, seen = string.sub(fields[i], 3), math.min(second, now)
    if now - seen > known then
      redis.call('HDEL', KEYS[1], fields[i])
    else
      members[id] = {ends = first, seen = seen, owner = owner}
      n = n + 1
    end
  end
end
local function count_alive()
  local alive = 0
  for _, member in pairs(members) do
    member.alive = now < member.ends and member.ends <= now + life
    if member.alive then alive = alive + 1 end
  end
  return alive
end
local alive = count_alive()
if n > 0 then budget = budget + math.max(0, math.min(now - last, life)) * alive / n end
local function show(number) return string.format('%.17g', number) end
redis.call('HSET', KEYS[1], 'budget', show(budget) .. ' ' .. show(now))
redis.call('PEXPIRE', KEYS[1], 2000 * known)
if anchor < 0 then
  redis.call('HDEL', KEYS[1], 'r:' .. me)
  return {}
end
local last_mine = members[me]
local is_duplicate = last_mine and last_mine.alive and last_mine.owner ~= process
if not last_mine then n = n + 1 end
members[me] = {ends = anchor > 0 and anchor + life or 0, seen = now}
redis.call('HSET', KEYS[1], 'r:' .. me, show(members[me].ends) .. ' ' .. show(now) .. ' ' .. process)
local reply = {show(now), show(budget), count_alive(), n, is_duplicate and 1 or 0}
for id, member in pairs(members) do
  reply[#reply + 1] = id
  reply[#reply + 1] = show(now - member.seen)
  reply[#reply + 1] = member.alive and 1 or 0
end
return reply
"""
"""Reports that a replica is alive, and returns who else is.

KEYS[1]: a hash with "budget" (budget time, when it was advanced) and "r:" + id of each replica (alive until, seen at,
token of its process). ARGV: id; Redis's time in the last reply that this replica got, 0 for none, below 0 to leave; the
seconds that a replica counts as alive after that time; the seconds after which a silent replica is forgotten; the token
of the process. Returns Redis's time, budget time, replicas alive, replicas known, whether another living process sent
the last heartbeat of this id, then id, age and whether alive of each; times in s.

Budget time is the time for which budgets are filled: it passes at alive / known of Redis's time, because the replicas
that are cut off fill their own parts. A replica is alive for a time after it last *received* an answer, not after it
last sent a heartbeat: so it knows when the others count it out, however long its later heartbeats travel. A jump of
Redis's clock counts out all replicas until their next heartbeat but one.
"""

LEASE_RATE = """
local me, budget, rate = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local held, want, holder_ttl = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local level, at, others, mine, holders, waiting, first_in_line = nil, budget, 0, 0, 1, {}, budget
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local units, since, waiting_since = string.match(fields[i + 1], '(%S+) (%S+) ?(%S*)')
  waiting_since = tonumber(waiting_since) or 0
  if fields[i] == 'level' then
    level, at = tonumber(units), tonumber(since)
  elseif fields[i] == 'h:' .. me then
    mine = tonumber(units)
    if waiting_since > 0 then first_in_line = waiting_since end
  elseif math.abs(budget - since) < holder_ttl then
    others, holders = others + units, holders + 1
    if waiting_since > 0 and math.abs(budget - since) < 2 then waiting[#waiting + 1] = waiting_since end
  else
    redis.call('HDEL', KEYS[1], fields[i])
  end
end
local reserved = 0
for _, since in ipairs(waiting) do
  if since < first_in_line then reserved = reserved + 1 end
end
if at > budget + 10 then at = budget end
local capacity = ARGV[4] - others
level = math.min(math.max(0, capacity - mine), (level or tonumber(ARGV[4])) + math.max(0, budget - at) * rate)
level = math.max(-ARGV[5], math.min(math.max(0, capacity - held), level - ARGV[6]))
local free = level - reserved
local granted = math.max(0, math.min(want, free, math.max(free / holders, 1)))
if held + granted < 1 then granted = 0 end
level, held = level - granted, held + granted
local function show(number) return string.format('%.17g', number) end
redis.call('HSET', KEYS[1], 'level', show(level) .. ' ' .. show(math.max(at, budget)))
if held + want > 0 then
  if held >= 1 then first_in_line = 0 end
  redis.call('HSET', KEYS[1], 'h:' .. me, show(held) .. ' ' .. show(budget) .. ' ' .. show(first_in_line))
else
  redis.call('HDEL', KEYS[1], 'h:' .. me)
end
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * ARGV[10]))
return {show(granted), show(level), holders}
"""
"""Charges a token bucket, and grants units of it.

KEYS[1]: a hash with "level" (the bucket's level, budget time) and "h:" + id of each replica that holds units (how many
at most, budget time, since when it has less than one). ARGV: id, budget time, units/s, burst, largest debt, units to
charge (below 0 gives back), units that the replica holds now, units wanted, seconds after which a holding is forgotten,
and those after which the unused bucket is. Returns the units granted, the level that is left, and the replicas that
hold units.

The bucket and all holdings are at most the burst. Of a low bucket a replica gets its part, and at least one unit,
for less would be of no use. One unit is kept for each other replica that waits for longer.
"""

LEASE_SESSIONS = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local me, ttl, others = ARGV[1], tonumber(ARGV[5]), 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  if fields[i] ~= me then
    local count, ends = string.match(fields[i + 1], '(%S+) (%S+)')
    ends = tonumber(ends)
    if now < ends and ends <= now + ttl then others = others + count else redis.call('HDEL', KEYS[1], fields[i]) end
  end
end
local granted = math.max(tonumber(ARGV[2]), math.min(tonumber(ARGV[3]), ARGV[4] - others))
if granted > 0 then
  redis.call('HSET', KEYS[1], me, string.format('%d %.17g', granted, now + ttl))
  redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * ttl))
else
  redis.call('HDEL', KEYS[1], me)
end
return {granted, others}
"""
"""Leases sessions to a replica.

KEYS[1]: a hash with the leased sessions of each replica and when they are forgotten. ARGV: id, open sessions, sessions
wanted, limit of all replicas, seconds until the lease ends. Returns the leased sessions of this replica, at least the
open ones, and those of the others.
"""
