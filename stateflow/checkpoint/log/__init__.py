"""The checkpoint log, the documents that it refers to, and their storage.

- `checkpoint_log`: the append-only log of create-only entries, and `fencing`: how an older run learns of a newer one.
- `transitions`: builds the content of CLAIM, COMMIT and ADMIN entries from the previous entry.
- `job_root`: a job root, its FORMAT, the steps by which runs change its log, leases of readers, and the storage probe.
- `completed_checkpoints`: which checkpoints retention keeps, and the entries of commands, such as pins.
- `entry_lists`: the lists of an entry that can become long.
- `documents`: all stored documents, field by field.
- `manifest_files`: the storage format of small documents; reads, writes and verifies stored files.
"""
