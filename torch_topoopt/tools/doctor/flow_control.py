"""Reads flow control of an interface: pause frames, and priority flow control (PFC).

Read as `ethtool -a` and `dcb pfc show` do, without these programs. IEEE 802.3x and 802.1Qbb.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from torch_topoopt.links.netlink import HEADER, attribute, attributes

# <linux/sockios.h>, <linux/ethtool.h>
_SIOCETHTOOL, _ETHTOOL_GPAUSEPARAM = 0x8946, 0x12
# <linux/netlink.h>, <linux/rtnetlink.h>, <linux/dcbnl.h>
_NLM_F_REQUEST, _NLMSG_ERROR, _RTM_GETDCB = 0x1, 2, 78
_DCB_CMD_IEEE_GET, _DCB_ATTR_IFNAME, _DCB_ATTR_IEEE, _DCB_ATTR_IEEE_PFC = 21, 1, 13, 2
_DCB = struct.Struct("=BBH")  # struct dcbmsg
_PRIORITIES = 8
_ANSWER_S = 2.0


def read_pause(interface: str) -> bool | None:
    """Whether pause frames are both sent and honoured; None if unknown."""
    value = array.array("B", struct.pack("=4I", _ETHTOOL_GPAUSEPARAM, 0, 0, 0))
    request = struct.pack("16sP8x", interface.encode(), value.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError:
        return None
    _, _, received, sent = struct.unpack("=4I", value)
    return bool(received and sent)


def read_pfc(interface: str) -> tuple[int, ...] | None:
    """The priorities that have PFC; None where the driver does not say."""
    body = _DCB.pack(socket.AF_UNSPEC, _DCB_CMD_IEEE_GET, 0)
    body += attribute(_DCB_ATTR_IFNAME, interface.encode() + b"\0")
    header = HEADER.pack(HEADER.size + len(body), _RTM_GETDCB, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
            netlink.settimeout(_ANSWER_S)
            netlink.send(header + body)
            return parse_pfc(netlink.recv(1 << 16))
    except OSError:
        return None


def parse_pfc(answer: bytes) -> tuple[int, ...] | None:
    """The priorities in the kernel's answer; None if it has none."""
    if len(answer) < HEADER.size + _DCB.size or HEADER.unpack_from(answer)[1] == _NLMSG_ERROR:
        return None
    ieee = attributes(answer[HEADER.size + _DCB.size :]).get(_DCB_ATTR_IEEE, b"")
    pfc = attributes(ieee).get(_DCB_ATTR_IEEE_PFC)
    if pfc is None or len(pfc) < 2:
        return None
    enabled = pfc[1]  # struct ieee_pfc: capability, then one bit for each priority
    return tuple(priority for priority in range(_PRIORITIES) if enabled >> priority & 1)
