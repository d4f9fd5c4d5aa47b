"""What a training step needs, on machines that are not here: memory, speed, data path, hours and dollars.

`tracing.py` alone imports torch, and is imported where a model has to be traced; everything else reads what it found.
"""
