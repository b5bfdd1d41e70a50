"""Canonical savepoints: writing them with several workers, and giving state another max parallelism.

- `writer`: writes shares of a checkpoint's keyed state.
- `worker_pool`: the workers; `worker`: their tasks, and the program of a worker process.
- `rekey`: gives all keyed state of a manifest another max parallelism.
- `buckets`: divides entries among new key groups, and sorts them.
"""
