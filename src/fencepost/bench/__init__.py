"""The benchmark: throughput, latency and cost per job with everything on, and the floors of the machine beside them.

Figures of different runs do not compare on a shared machine; the ratios to the floors of the same run do.
"""
