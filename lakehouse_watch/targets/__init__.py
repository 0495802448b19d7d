"""Those who are told: webhooks and mail."""
