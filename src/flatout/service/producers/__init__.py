"""Makers of batches: processes on this machine, Ray tasks, AWS Lambda functions."""
