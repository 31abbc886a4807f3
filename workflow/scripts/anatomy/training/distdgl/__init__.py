"""DGL's own distributed engine (Zheng et al., 2020) on the study's partitions, for the strategy `distdgl`."""
