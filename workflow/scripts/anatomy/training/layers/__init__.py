"""Graph convolutions: one file per kind, whose class `Layer` keeps aggregating apart from combining (see `_base`)."""
