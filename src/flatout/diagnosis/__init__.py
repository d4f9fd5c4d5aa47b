"""What holds a run back, what a change would buy. Never imports torch."""
