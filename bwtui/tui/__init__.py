"""The terminal UI: screens over a relay that runs elsewhere, or over a recording.

Only the command line imports this package. It never talks to PostgreSQL or Kafka: all it knows comes from a
`bwtui.tui.state.Model`.
"""
