"""Odradek plugin: TCP transport with scatter-gather sends and sendfile."""
