"""Lookups of 'bwtui verify' before an audit begins."""
