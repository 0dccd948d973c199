"""Bytes on disk: content-addressed blobs and the manifests that name them. Knows nothing of torch."""
