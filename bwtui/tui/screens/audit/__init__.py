"""The screens of an audit, and the mix-ins of the apps that run audits and replays."""
