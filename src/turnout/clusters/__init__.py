"""Clusters that play sweeps: Ray and Dask, on this machine or on many.

Everything in `__all__` is public; the modules of this package are private.

    with RayCluster("auto") as cluster:
        sweep(plans, store, backend=cluster)
"""

from turnout.clusters.connect import BACKENDS, connect
from turnout.clusters.dask import DaskCluster
from turnout.clusters.ray import RayCluster

__all__ = ["BACKENDS", "DaskCluster", "RayCluster", "connect"]
