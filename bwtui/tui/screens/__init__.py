"""The screens, one per file; all derive from `bwtui.tui.screens.base.RelayScreen`."""
