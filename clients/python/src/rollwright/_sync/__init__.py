"""The clients for programs with threads: made from `rollwright._async`, but for `runtime`."""
