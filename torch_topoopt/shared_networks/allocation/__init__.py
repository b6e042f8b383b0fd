"""Boards of a HammingMesh for jobs: virtual sub-meshes, failed boards, defragmentation
(docs/planning/allocation.md)."""
