"""The method: advantages by rank, the policy loss, what a step logs."""
