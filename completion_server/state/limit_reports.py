"""Carries heartbeats and reports of shared limits to Redis. Each script names one key, as a Redis Cluster needs it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from completion_server.limits.replicas import Replica
from completion_server.limits.shares import DemandReport
from completion_server.state.store import Arg, Store, StoreUnavailableError

KNOWN_S = 600.0
"""A silent replica is shown for this time."""
_PATIENCE_S = 0.02
"""How long a message may wait to be sent together with others."""

SHARE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local me, kept_s, rate, burst = 'r:' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local max_debt, taken, num_open, demand = tonumber(ARGV[5]), ARGV[6], ARGV[7], tonumber(ARGV[8])
local debt, elapsed, wanted, parts, mine = 0, 0, demand, 0, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local at, first, part, num = string.match(fields[i + 1], '(%S+) (%S+) ?(%S*) ?(%S*)')
  if fields[i] == 'debt' then
    debt, elapsed = first, math.max(0, now - at)
  elseif math.abs(now - at) >= kept_s then
    redis.call('HDEL', KEYS[1], fields[i])
  elseif fields[i] == me then
    mine = part
  else
    wanted, parts, num_open = wanted + first, parts + part, num_open + num
  end
end
debt = math.min(max_debt, math.max(0, debt - elapsed * rate * (1 - parts - mine) + taken))
local function show(...)
  local texts = {...}
  for i = 1, #texts do texts[i] = string.format('%.17g', texts[i]) end
  return table.concat(texts, ' ')
end
local part = 0
if demand > 0 then
  part = math.min(demand / wanted, math.max(ARGV[9], 1 - parts))
  redis.call('HSET', KEYS[1], me, show(now, demand, part, ARGV[7]))
else
  redis.call('HDEL', KEYS[1], me)
end
redis.call('HSET', KEYS[1], 'debt', show(now, debt))
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * (kept_s + (rate > 0 and max_debt / rate or 0))))
return {show(part), show(burst - debt - num_open)}
"""
"""Reports what a replica took of a key. Returns its share of the key, and the units left of the burst.

KEYS[1]: a hash with "debt" (time, units that were taken and not filled again) and "r:" + id of each replica (time,
demand, share, open sessions). ARGV: id, seconds after which a silent replica is forgotten, units/s, burst, largest
debt, units taken and not filled again, open sessions, demand (0 ends the share), and the share that a replica gets
beside those of others. Each replica fills its share of the debt, so the rest of the rate is left for here; it is
negative while the shares are more than 1.
"""

MEET = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local found, fields = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local at, process = string.match(fields[i + 1], '(%S+) (%S+)')
  if math.abs(now - at) > tonumber(ARGV[3]) then
    redis.call('HDEL', KEYS[1], fields[i])
  else
    found[#found + 1] = {fields[i], process, tostring(math.max(0, now - at))}
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.17g ', now) .. ARGV[2])
if ARGV[2] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * ARGV[3]))
return found
"""
"""Keeps a replica's heartbeat, and returns id, process and age in seconds of each one that was kept before.

KEYS[1]: a hash with time and process by id. ARGV: id, token of the process ("" to leave), seconds after which a
heartbeat is forgotten.
"""


class LimitReports:
    """The board of shared limits in Redis. Implements `Board`."""

    def __init__(self, store: Store, name: Callable[[str, str], str]) -> None:
        """Report to `store`. `name` makes the name of a Redis key from a kind, such as "user_tokens", and a user."""
        self._store = store
        self._name = name

    async def meet(self, replica: Replica, *, leaves: bool = False) -> Sequence[Replica] | None:
        """Send a heartbeat, or take it back; return those before it. None if there is no answer."""
        process = "" if leaves else replica.process
        try:
            found = await self._eval(MEET, "replicas", "", replica.id, process, KNOWN_S)
        except StoreUnavailableError:
            return None
        return [Replica(name.decode(), process.decode(), float(age)) for name, process, age in found]

    async def report(self, replica: Replica, reports: Sequence[DemandReport]) -> None:
        """Send reports and settle them."""
        calls = [self._eval(SHARE, each.kind, each.key, replica.id, *each.arguments) for each in reports]
        for each, call in zip(reports, calls, strict=True):
            try:
                part, left = map(float, await call)
                each.settle((part, left))
            except (StoreUnavailableError, TypeError, ValueError):  # the last two: no reply of the script
                each.settle(None)

    def _eval(self, script: str, kind: str, key: str, *arguments: Arg) -> "asyncio.Future[Any]":
        return self._store.call_nowait("EVAL", script, 1, self._name(kind, key), *arguments, patience_s=_PATIENCE_S)
