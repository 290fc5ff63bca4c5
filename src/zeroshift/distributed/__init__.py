"""Adapt to sets that one machine cannot hold: features in shards, passes over them in many processes or on Ray."""

from zeroshift.distributed.adaptation import Plan, adapt, plan
from zeroshift.distributed.answers import AnswerOptions, FinishedRunError
from zeroshift.distributed.executors import (
    Executor,
    LocalExecutor,
    RayExecutor,
    check_executor,
    open_executor,
    use_executor,
)
from zeroshift.distributed.replicas import Changes, Replica, adapt_replicas, assign_keys, follow_shards
from zeroshift.distributed.shards import FeatureShards, Shard, ShardError

__all__ = [
    "AnswerOptions",
    "Changes",
    "Executor",
    "FeatureShards",
    "FinishedRunError",
    "LocalExecutor",
    "Plan",
    "RayExecutor",
    "Replica",
    "Shard",
    "ShardError",
    "adapt",
    "adapt_replicas",
    "assign_keys",
    "check_executor",
    "follow_shards",
    "open_executor",
    "plan",
    "use_executor",
]
