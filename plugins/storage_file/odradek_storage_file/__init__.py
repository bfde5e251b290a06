"""Odradek plugin: log storage in segment files on local disk, with sendfile and group-committed fdatasync."""
