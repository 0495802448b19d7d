"""The declared tables as Postgres's catalog describes them."""
