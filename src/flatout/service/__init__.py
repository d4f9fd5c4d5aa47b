"""Batches prepared once and shared by several jobs, on one machine or many."""

import os

# Ray starts its servers by fork and exec from a process in which gRPC's threads run; gRPC's handlers of a fork crash or
# wait for ever there, and no process of ours goes on after a fork (docs/decisions/0002-no-fork.md). Read when gRPC is
# imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
