#!/bin/sh
# The Python of Spark's workers on this machine: runs $DELTAQ_SPARK_PYTHON with the arguments that Spark gives it.
#
# Spark puts its archives of pyspark and py4j, and a jar, before all else on the path of each worker. Python would compile
# every module of an archive in every process, because an archive holds no bytecode. Without them, workers import the
# same pyspark from the installed package.
set -f
IFS=:
path=
for entry in $PYTHONPATH; do
    case $entry in
        */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip | */jars/spark-core_*.jar) ;;
        *) path=$path:$entry ;;
    esac
done
PYTHONPATH=${path#:}
export PYTHONPATH
# `-P` keeps the folder of the file off the path.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
    shift 2
    set -- -P "${0%/*}/worker_daemon.py" "$@"
fi
exec "${DELTAQ_SPARK_PYTHON:?names the Python that runs the workers of Spark}" "$@"
