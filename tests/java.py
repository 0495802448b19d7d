"""What the tests' JVMs are started with."""

QUICK = "-XX:TieredStopAtLevel=1"
"""Code is compiled once, in haste: these JVMs end before the second compiler has earned the processor time it takes."""
