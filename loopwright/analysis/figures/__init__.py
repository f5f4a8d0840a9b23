"""Figures of an analysis."""
