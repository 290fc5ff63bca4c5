"""Adapt to sets that one machine cannot hold: features in shards, passes over them in many processes or on Ray."""

from zeroshift.distributed.adaptation import Plan, adapt, plan
from zeroshift.distributed.executors import (
    Executor,
    LocalExecutor,
    RayExecutor,
    check_executor,
    open_executor,
    use_executor,
)
from zeroshift.distributed.shards import FeatureShards, Shard, ShardError

__all__ = [
    "Executor",
    "FeatureShards",
    "LocalExecutor",
    "Plan",
    "RayExecutor",
    "Shard",
    "ShardError",
    "adapt",
    "check_executor",
    "open_executor",
    "plan",
    "use_executor",
]
