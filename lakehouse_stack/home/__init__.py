"""What a home stores for its servers: settings, ports, credentials, the certificate, Dagster's instance file."""
