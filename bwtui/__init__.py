"""bwtui: a PostgreSQL to Kafka change-data-capture relay that can be watched, recorded and audited."""

__version__ = "0.1.0"
