"""Runs of drivers in a cluster: ``spark-submit --deploy-mode cluster``, followed from the host that submits.

shipment: what the driver of a job needs, and gets as files: job file and modules, settings, credentials
cluster: the interface to a kind of cluster: submit a driver, find it again, kill it, remove what it leaves
yarn, kubernetes: that interface for YARN and for Kubernetes
cluster_run: a run in a cluster: submits it or finds it again, follows and stops it through the job root, ends it
"""

from __future__ import annotations

from stateflow.clock import Clock
from stateflow.errors import ConfigError
from stateflow.submission.cluster import Cluster, SparkSubmit


def open_cluster(spark_submit: SparkSubmit, clock: Clock) -> Cluster:
    """Returns the cluster to which a command line of spark-submit submits.

    Raises ConfigError for a master whose drivers this version does not run in the cluster.
    """
    # Only commands that submit a driver need HTTP.
    from stateflow.submission.kubernetes import MASTER, Kubernetes
    from stateflow.submission.yarn import Yarn

    master = spark_submit.master
    if master == "yarn":
        return Yarn(spark_submit, clock)
    if master.startswith(MASTER):
        return Kubernetes(spark_submit, clock)
    if master.startswith("spark:"):
        raise ConfigError(
            "a standalone master does not run Python drivers in the cluster",
            hint="use --deploy-mode client; YARN and Kubernetes run drivers in the cluster",
            master=master,
        )
    raise ConfigError(
        "the master does not run drivers in the cluster",
        hint="use --deploy-mode client, or a master yarn or k8s://…",
        master=master or "not given",
    )
