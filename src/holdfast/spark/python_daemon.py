"""PySpark's worker daemon with our modules already loaded: workers are forks of it. Runs on every node.

A Python worker dies with every cancelled or failed task, and its successor would load pyarrow, numpy and us anew, which
takes a second of CPU just when a recovery needs it. Set as `spark.python.daemon.module`; nothing here starts a thread,
so that forking stays safe.
"""

from __future__ import annotations

import gc
import os

# Arrow would start its threads with the first use of a pool; kernels here run single-threaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyspark.cloudpickle
import pyspark.worker
from pyspark.daemon import manager

import holdfast.spark.resident_task
import holdfast.spark.worker_task

LOADED = (pyspark.cloudpickle, pyspark.worker, holdfast.spark.resident_task, holdfast.spark.worker_task)

if __name__ == "__main__":
    # What is loaded is never freed: the forks need not touch, and so copy, its pages.
    gc.freeze()
    manager()
