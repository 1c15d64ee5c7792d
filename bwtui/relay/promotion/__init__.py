"""Preparation for a promotion, and handling of a former primary that still answers after one."""
