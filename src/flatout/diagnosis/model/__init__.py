"""The performance model: pure functions of measured quantities, without torch. DESIGN section 7."""
