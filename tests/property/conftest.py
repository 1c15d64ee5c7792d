"""Hypothesis for this folder: bounded in time, and the same examples on every run of CI."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "bounded", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "bounded"))
