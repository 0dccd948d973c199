"""The format of a cache folder: where files lie, and how manifests are written as bytes."""
