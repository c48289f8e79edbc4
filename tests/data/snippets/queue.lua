-- A queue of tasks that doesn't grow beyond its size.
local Queue = {}
Queue.__index = Queue

function Queue.new(size)
  return setmetatable({ size = size, first = 1, last = 0, tasks = {} }, Queue)
end

function Queue:push(task)
  if self.last - self.first + 1 >= self.size then
    return false, "the queue is full"
  end
  self.last = self.last + 1
  self.tasks[self.last] = task
  return true
end

function Queue:pop()
  if self.first > self.last then
    return nil
  end
  local task = self.tasks[self.first]
  self.tasks[self.first] = nil
  self.first = self.first + 1
  return task
end

function Queue:each(visit)
  for at = self.first, self.last do
    local ok, err = pcall(visit, self.tasks[at])
    if not ok then
      print("task " .. at .. " failed: " .. tostring(err))
    elseif err == "stop" then
      break
    end
  end
end

local defaults = {
  { name = "a", on = true },
  { name = "b", on = true },
}

return { Queue = Queue, defaults = defaults }
