"""Terminal UI: screens over a relay that runs in another process, or over a recording.

Only the command line imports this package. It never connects to PostgreSQL or Kafka: all data comes from a
`bwtui.tui.sources.model.Model`.
"""
