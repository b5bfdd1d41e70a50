"""State servers: they serve the committed state of a job to queries over HTTP, and the client for them.

- `client`: the clients; `protocol`: their steps, without I/O; `steps`: the steps and results
- `server`: the process of a server; `app`: its HTTP requests; `connections`: its address, and bounds of connections
- `lookups`: requests, look-ups and answers
- `follower`: the checkpoints that a server has open; `fetch_process`: fetches their files
- `registry`: the leases by which clients find servers
"""
