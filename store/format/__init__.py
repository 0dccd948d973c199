"""What lies in a cache folder: its layout, and manifests as bytes."""
