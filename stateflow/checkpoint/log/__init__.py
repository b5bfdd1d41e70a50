"""The checkpoint log, the documents that it refers to, and their storage."""
