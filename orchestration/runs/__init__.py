"""The life of a run: partitions and subset at launch, pools, workers, signals, load state, failure messages."""
