"""Adds compiled modules to the archives that Spark's Python workers import PySpark from.

Spark puts its ``pyspark.zip`` on the path of each worker. Python does not store compiled modules of archives, so each
worker process would compile PySpark again, which takes 0.6 s of CPU. Other versions of Python still read the sources.

    python scripts/compile_pyspark.py
"""

from __future__ import annotations

import os
import py_compile
import shutil
import tempfile
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

import pyspark


def compile_archive(archive: Path) -> bool:
    """Adds the compiled form of each module; returns whether the archive has changed."""
    with ZipFile(archive) as old:
        names = set(old.namelist())
    missing = sorted(name for name in names if name.endswith(".py") and f"{name}c" not in names)
    if not missing:
        return False
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        draft = Path(folder) / archive.name
        shutil.copyfile(archive, draft)
        with ZipFile(archive) as old, ZipFile(draft, "a", ZIP_STORED) as new:
            for name in missing:
                source = Path(old.extract(name, folder))
                # The archive is never edited, so workers need not compare timestamps.
                mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
                compiled = f"{source}c"
                py_compile.compile(str(source), compiled, f"{archive}/{name}", doraise=True, invalidation_mode=mode)
                new.write(compiled, f"{name}c")
        # Atomically, because a worker that is starting may have the old archive open.
        os.replace(draft, archive)
    return True


def main() -> None:
    """Compiles the archives of the installed PySpark."""
    for archive in sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")):
        if compile_archive(archive):
            print(f"compiled {archive.name}")


if __name__ == "__main__":
    main()
