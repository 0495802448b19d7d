"""What to do now: policies, measured health, and a ranked plan."""
