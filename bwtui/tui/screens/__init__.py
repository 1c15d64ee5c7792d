"""One file a screen; all derive from `bwtui.tui.screens.base.RelayScreen`."""
