"""Audits in the screens: their report, the commands that run beside the screens, and Kafka's own records."""
