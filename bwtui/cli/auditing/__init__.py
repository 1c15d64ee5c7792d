"""What 'bwtui verify' looks up before an audit begins."""
