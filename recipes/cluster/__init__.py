"""Ray jobs: what travels, how a job is followed and stopped."""
