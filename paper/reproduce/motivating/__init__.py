"""The tasks that motivate input-dependent end-times: concentric annuli and reflection."""
