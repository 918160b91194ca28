"""Clusters that play sweeps: Ray and Dask, on this machine or on many.

Everything in `__all__` is public; the modules of this package are private.

    with RayCluster("auto") as cluster:
        sweep(plans, store, backend=cluster)
"""

from turnout.lab.clusters.connect import BACKENDS, connect
from turnout.lab.clusters.dask import DaskCluster
from turnout.lab.clusters.ray import RayCluster

__all__ = ["BACKENDS", "DaskCluster", "RayCluster", "connect"]
