"""The version of this package, apart from anything that takes time to import."""

VERSION = "0.1.0"
