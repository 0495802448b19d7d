"""What is looked at: one module per part of the system. A probe reads, and changes nothing."""
