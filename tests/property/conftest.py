"""Hypothesis settings for this folder: bounded in time; on CI, the same examples in every run."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "bounded", max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "bounded"))
