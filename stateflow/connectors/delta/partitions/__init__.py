"""Partitioned Delta tables: values of partitions, their folders, and the files that tasks write into them."""
