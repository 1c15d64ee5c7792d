"""Hypothesis settings for this folder: the number of cases is limited to what CI has time for."""

import os

from hypothesis import HealthCheck, settings

CASES = int(os.environ.get("BWTUI_AUDIT_CASES", "30"))

settings.register_profile(
    "audit", max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("audit")
