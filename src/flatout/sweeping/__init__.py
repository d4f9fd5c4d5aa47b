"""Many settings of one recipe, the worse ones dropped early. Never imports torch."""
