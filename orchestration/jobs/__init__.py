"""The jobs: loads, marts, maintenance."""
