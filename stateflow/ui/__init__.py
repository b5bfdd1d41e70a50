"""The pages of jobs: a read-only JSON API, and the files of its pages.

- `app`: the application and its endpoints; `openapi`: their description
- `views`: the objects that they return; `journal`: actions of persons over all jobs, also as CSV
- `roots`: the job roots that are followed, with threads and deadlines; `snapshots`: one job root in memory
- `catalog`: which job roots there are; `server`: the process that serves the application
"""
