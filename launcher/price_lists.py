"""The two price lists of `advise` and `compare`: their names and contents."""

TOPOOPT = "TopoOpt prices"
HAMMINGMESH = "HammingMesh prices"
LEGEND = (
    f"{TOPOOPT}: NICs, transceivers, switch ports, and 500 m of fibre for each cable (Table 2 of "
    "that paper)",
    f"{HAMMINGMESH}: copper or optical cables and switch ports, without NICs (section III-C of "
    "that paper); the two lists cannot be compared with each other",
)
