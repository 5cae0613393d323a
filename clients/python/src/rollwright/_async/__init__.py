"""The clients for `async` programs; `scripts/unasync.py` makes `rollwright._sync` from them."""
