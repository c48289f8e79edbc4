"""The servers of several regions as one: measures how far each is, notices which ones fail, and orders them for a user.

Pure: `settings`, `distances` (round trips and tiers), `availability` (failures and returns), `choice` (a user's order).
With connections: `connections` (their users, and new certificates), `watcher` (the race and the later checks),
`silence` (notices that nothing comes), `regions` (what all users of a process share); `race` for commands without an
event loop.
"""
