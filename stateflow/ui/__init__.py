"""The pages of jobs: a read-only JSON API, and the files of its pages.

- `app`: the application and the list of endpoints; `openapi`: their description
- `jobs`, `checkpoints`, `timeline`, `runs`, `savepoints`, `restores`, `journal`, `dags`: the endpoints of a subject,
  with the objects that they return
- `requests`: a request and its parameters; `answers`: errors, versions and kept answers; `access`: who may read
- `roots`: the job roots that are followed, with threads and deadlines; `snapshots`: one job root in memory
- `catalog`: which job roots there are; `server`: the process that serves the application
"""
