"""``scripts/structure.py``: which places it reports as tests of a version of Spark or Airflow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from structure import VERSION_MODULES, Module, version_tests


def _found(text: str, name: str = "stateflow.new", **known: str) -> list[str]:
    module = Module(name, Path("new.py"), text, ast.parse(text))
    return list(version_tests([module], {f"{name}: {place}": reason for place, reason in known.items()}))


TESTS = {
    "import pyspark\nold = pyspark.__version__ < '4.1'": "new.py:2 pyspark.__version__",
    "import airflow as of\nprint(of.__version__)": "new.py:2 of.__version__",
    "from pyspark import __version__": "new.py:1 from pyspark import __version__",
    "from airflow.version import version": "new.py:1 from airflow.version import version",
    "from importlib import metadata\nmetadata.version('pyspark')": "new.py:2 metadata.version('pyspark')",
    "def f(_installed_version):\n    return _installed_version('apache-airflow-core') < (3, 3)": (
        "new.py:2 _installed_version('apache-airflow-core')"
    ),
    "def f(spark):\n    if spark.version.startswith('4.0'): pass": "new.py:2 spark.version",
    "def f(self):\n    return self._parts, self.session.version": "new.py:2 self.session.version",
    "def f(running):\n    return running().minor >= (4, 1)": "new.py:2 running().minor >= (4, 1)",
    "try:\n    from pyspark.sql import New\nexcept ImportError:\n    New = None": "new.py:1 try: import pyspark",
    "def f():\n    try:\n        import airflow.sdk\n    except (KeyError, ModuleNotFoundError):\n        pass": (
        "new.py:2 try: import airflow"
    ),
    "from pyspark.sql import DataFrame\nhasattr(DataFrame, 'new')": "new.py:2 hasattr(DataFrame, 'new')",
}


@pytest.mark.parametrize(("text", "place"), TESTS.items(), ids=TESTS.values())
def test_a_test_of_a_version_is_found_outside_of_the_modules_that_know_them(text: str, place: str) -> None:
    assert _found(text) == [place]
    assert [_found(text, name) for name in VERSION_MODULES] == [[], []]


@pytest.mark.parametrize(
    "text",
    [
        "import pyspark\nfrom pyspark.sql import functions as F\nF.lit(pyspark.cloudpickle)",
        "def f(table, deltalake):\n    return table.version, deltalake.__version__",
        "try:\n    import openlineage\nexcept ImportError:\n    pass",
        "try:\n    from pyspark.sql import New\nfinally:\n    print()",
        "def f(installed_version):\n    return installed_version('pyarrow'), hasattr(installed_version, 'pyspark')",
        "from stateflow.config.spark_versions import running_version\nold = running_version().has_time_type",
    ],
)
def test_other_uses_of_spark_and_airflow_are_not(text: str) -> None:
    assert _found(text) == []


def test_a_known_place_stays_until_it_is_not_there_any_more() -> None:
    (place,) = _found("import pyspark\npyspark.__version__", **{"pyspark.__version__": "is shown", "gone": "was shown"})
    assert place.startswith("stateflow.new: gone ")
