"""Runs of drivers in a cluster: ``spark-submit --deploy-mode cluster``, followed from the host that submits.

shipment: what the driver of a job needs, and gets as files: job file and modules, settings, credentials
cluster: the interface to a kind of cluster: submit a driver, find it again, kill it, remove what it leaves
yarn, kubernetes: that interface for YARN and for Kubernetes
cluster_run: a run in a cluster: submits it or finds it again, follows and stops it through the job root, ends it
"""

from __future__ import annotations

from stateflow.clock import Clock
from stateflow.config.submit_options import YARN, runs_drivers
from stateflow.errors import ConfigError, EnvironmentUnsupported
from stateflow.submission.cluster import Cluster, SparkSubmit


def open_cluster(spark_submit: SparkSubmit, clock: Clock) -> Cluster:
    """Returns the cluster to which a command line of spark-submit submits.

    Raises ConfigError for a master whose drivers this version does not run in the cluster, or without the packages.
    """
    master = spark_submit.master
    if not runs_drivers(master):
        raise ConfigError(
            "the master does not run Python drivers in the cluster",
            hint="use --deploy-mode client; YARN and Kubernetes (k8s://…) run drivers in the cluster",
            master=master or "not given",
        )
    try:
        # Only commands that submit a driver need HTTP.
        from stateflow.submission.kubernetes import Kubernetes
        from stateflow.submission.yarn import Yarn
    except ModuleNotFoundError as e:
        raise EnvironmentUnsupported(
            "a package for drivers in a cluster is not installed",
            hint="pip install 'stateflow[cluster]'",
            package=e.name,
        ) from e
    return Yarn(spark_submit, clock) if master == YARN else Kubernetes(spark_submit, clock)
