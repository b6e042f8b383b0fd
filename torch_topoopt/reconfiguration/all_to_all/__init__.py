"""All-to-all collectives during which circuits move: schedules, bounds, planners.

For usage and measurements see docs/planning/alltoall.md.

Times are slots: in one slot a link carries one chunk, all bytes of one server for another, over one
hop. A schedule is a sequence of topologies, each with its own slots.
"""
