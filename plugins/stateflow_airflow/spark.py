"""Options of spark-submit. DAG files import this module, so it imports nothing slow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SparkSubmit:
    """Options of spark-submit.

    Args:
        conn_id: Airflow connection of type `spark`; its host is the master, such as ``local[2,4]``.
        conf: Spark settings (``--conf``). The operator renders templates in it.
        env_vars: environment variables of the driver. The operator renders templates in it.
        options: further arguments of SparkSubmitHook by name, such as ``driver_memory`` or ``jars``.
    """

    conn_id: str = "spark_default"
    conf: Mapping[str, str] = field(default_factory=dict)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def rendered(self, conf: object, env_vars: object) -> SparkSubmit:
        """Returns these options with the rendered settings and variables. Raises PermanentFailure for other values."""
        from stateflow_airflow.operators.template_values import to_settings, to_text

        texts = (
            {key: to_text(value) for key, value in to_settings(name, given).items()}
            for name, given in (("conf", conf), ("env_vars", env_vars))
        )
        return replace(self, conf=next(texts), env_vars=next(texts))
