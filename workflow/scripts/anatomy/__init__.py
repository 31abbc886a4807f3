"""The library of the study: one folder per stage, in the order the data takes.

`graphs` → `partitions` → `training` → `traces` → `tables` → `figures`, `observations`. A stage reads only the files
that the stage before it wrote. Modules at this level are what several stages share.
"""
