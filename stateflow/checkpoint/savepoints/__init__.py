"""Creation, lookup, claims, expiry and deletion of savepoints.

- `create`: copies a checkpoint's files into a folder of the user.
- `catalog`: finds and reads savepoints; `names`: rules for their names and times.
- `claim_slots`: who owns a savepoint; `claimed_savepoints`: the savepoints that a job's log claims.
- `cleanup`: deletes savepoints, and selects those that have expired.
- `canonical`: writes state in the format that is independent of state backends.
"""
