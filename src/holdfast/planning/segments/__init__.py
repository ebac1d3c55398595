"""Anchors and checkpoint frequencies for the least expected recovery time (FastRecover). Pure."""
