"""The version, alone in its file so that packaging can read it without importing torch."""

VERSION = "0.2.0"
