"""All-to-all collectives during which circuits move: schedules, bounds, planners.

Usage and what was measured: docs/planning/alltoall.md.

Times are slots: in one slot a link carries one chunk, all that one server has for another, over one
hop. A schedule is a sequence of topologies, each with slots of its own.
"""
