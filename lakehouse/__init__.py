"""What every part shares: settings, declarations, the Iceberg catalog, the Spark session, quoting, errors."""
