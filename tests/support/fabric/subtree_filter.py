"""Data trees as XML and subtree filters (RFC 6241, section 6), for test servers of NETCONF."""

from __future__ import annotations

from typing import Any

from lxml import etree

OPSW = "http://www.polatis.com/yang/optical-switch"


def elements(tree: dict[str, Any]) -> list[Any]:
    """A data tree as XML: leaf-lists and lists are repeated elements."""
    found: list[Any] = []
    for name, value in tree.items():
        for entry in value if isinstance(value, list) else [value]:
            element = etree.Element(f"{{{OPSW}}}{name}", nsmap={None: OPSW})
            if isinstance(entry, dict):
                element.extend(elements(entry))
            else:
                element.text = str(entry)
            found.append(element)
    return found


def filtered(nodes: list[Any], filters: list[Any]) -> list[Any]:
    """Subtree filtering: RFC 6241, 6.2."""
    kept = []
    for node in nodes:
        found = [_select(node, f) for f in filters if f.tag == node.tag]
        subtrees = [subtree for subtree in found if subtree is not None]
        if subtrees:
            merged, *others = subtrees
            for other in others:  # several filters of one node select the sum of them
                known = {etree.tostring(child) for child in merged}
                merged.extend(c for c in other if etree.tostring(c) not in known)
            kept.append(merged)
    return kept


def _select(node: Any, wanted: Any) -> Any | None:
    """The part of `node` that the filter `wanted` of the same name selects."""
    criteria = list(wanted)
    matches = [c for c in criteria if not len(c) and (c.text or "").strip()]
    for match in matches:
        values = [(n.text or "").strip() for n in node if n.tag == match.tag]
        if match.text.strip() not in values:
            return None
    copy = etree.Element(node.tag, nsmap=node.nsmap)
    if not criteria or len(matches) == len(criteria):  # selects everything below
        copy.text = node.text
        copy.extend(etree.fromstring(etree.tostring(child)) for child in node)
        return copy
    kept = filtered(list(node), criteria)
    if not kept and len(matches) < len(criteria):
        return None
    copy.extend(etree.fromstring(etree.tostring(child)) for child in kept)
    return copy
