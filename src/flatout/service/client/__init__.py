"""The pool of a job that shares: asking, opening batches, writing back, and a local pool where the service fails."""
