#!/usr/bin/env bash
# What a pod of Spark runs: a driver or an executor, with the PySpark that pip has installed. It is the counterpart of the
# entrypoint in Spark's own images, and takes the same arguments and variables from Spark.
set -euo pipefail

python=${PYSPARK_PYTHON:-python3}
SPARK_HOME=${SPARK_HOME:-$("$python" -c 'import importlib.util; print(*importlib.util.find_spec("pyspark").submodule_search_locations)')}
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
export SPARK_HOME

case ${1:-} in
    driver)
        shift
        exec "$SPARK_HOME/bin/spark-submit" \
            --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
            --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
            --deploy-mode client "$@"
        ;;
    executor)
        options=()
        for name in "${!SPARK_JAVA_OPT_@}"; do options+=("${!name}"); done
        exec "$java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
            -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*" \
            org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
            --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
            --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
            --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
        ;;
    *)
        exec "$@"
        ;;
esac
