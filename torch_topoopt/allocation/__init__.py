"""Boards of a HammingMesh for jobs: virtual sub-meshes, failed boards, defragmentation
(docs/allocation.md)."""
