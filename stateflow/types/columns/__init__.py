"""Columns of declared types, and their conversion to and from Python objects.

- `shapes`: the representation of a declared type in Arrow and in Spark.
- `conversion`: columns to Python objects and back.
- `struct_classes`: classes that no process can import, sent with their fields.
- `precision`, `row_kind`: the digits of a Decimal; the kind of a row in a changelog.
"""
