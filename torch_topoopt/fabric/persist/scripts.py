"""Shell scripts that look at a host, apply configuration files, confirm and undo them.

POSIX sh, read from standard input by root's shell. `apply` first saves what it replaces and starts
a process that restores it, unless `confirm` comes in time: that is another connection, so a host
which has lost its network restores itself. Renaming `pending` decides who of both was first.

    /var/lib/topoopt/cables   files   the paths that are applied, confirmed or not
                              saved/  their contents from before, and restore.sh
                              pending until it is confirmed
    /run/topoopt/cables       addresses and MTUs from before, to put back until the next restart
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch_topoopt.fabric.persist.manager_files import ConfigFile, Manager
    from torch_topoopt.fabric.persist.port_settings import KeptPort

# Runs a script as root: a person who may become it without a password needs no root login.
SHELL = 'if [ "$(id -u)" = 0 ]; then exec sh; else exec sudo -n sh; fi'

CONFIRM_S = 60

# The manager's name, the address at which ssh came in, and all addresses.
LOOK = """\
# without systemd: by the first 15 characters of its name, which are all that the kernel keeps
is_active() {
  if [ -d /run/systemd/system ]; then systemctl is-active --quiet "$1"
  else pgrep -x "$(echo "$1" | cut -c 1-15)" >/dev/null
  fi
}
if command -v netplan >/dev/null && ls /etc/netplan/*.yaml >/dev/null 2>&1; then echo netplan
elif is_active NetworkManager; then echo networkmanager
elif is_active systemd-networkd; then echo networkd
else echo none
fi
echo "${SSH_CONNECTION:-}"
ip -o address show | while read -r _ interface _ address _; do
  case $address in */*) echo "$interface $address" ;; *) echo "$interface $address/32" ;; esac
done
"""

_COMMON = r"""
set -eu
var=/var/lib/topoopt/cables run=/run/topoopt/cables
fail() { echo "topoopt: $*" >&2; exit 1; }

# Addresses, MTUs and sysctls; managers leave some of theirs at ports that they no longer manage.
put_back() {
  [ -e "$run" ] || return 0
  for interface in $(sed -n 's/^mtu \([^ ]*\) .*/\1/p' "$run"); do
    ip -o address show dev "$interface" | while read -r _ _ _ address _; do
      grep -qxF "address $interface $address" "$run" ||
        ip address del "$address" dev "$interface" || true
    done
  done
  while read -r kind interface value; do
    case $kind in
      mtu) ip link set dev "$interface" mtu "$value" ;;
      address) ip address replace "$value" dev "$interface" ;;
      sysctl) echo "$value" >"/proc/sys/net/ipv4/conf/$interface" ;;
    esac || true
  done <"$run"
}

remove_files() {
  while read -r path; do rm -f "$path"; done <"$var/files"
}
"""

_RESTORE = r"""
sleep "$1"
mv "$var/pending" "$var/restoring" 2>/dev/null || exit 0
remove_files
rm -f "$var/files"
(cd "$var/saved/root" && find . -type f) | while read -r path; do
  cp -p "$var/saved/root/$path" "/$path"
done
[ ! -e "$var/saved/files" ] || mv "$var/saved/files" "$var/files"
deactivate
[ -e "$var/files" ] || { put_back; rm -f "$run"; }
rm -rf "$var/saved" "$var/restoring"
rmdir "$var" 2>/dev/null || true
"""

_APPLY = r"""
[ ! -e "$var/pending" ] || fail "an earlier change is not confirmed; it is restored within a minute"
mkdir -p "$var/saved/root" "${run%/*}"
save_state
touch "$var/files"
{ cat "$var/files"; new_files; } | sort -u | while read -r path; do
  if [ -e "$path" ]; then
    mkdir -p "$var/saved/root${path%/*}"
    cp -p "$path" "$var/saved/root$path"
  fi
done
if [ -s "$var/files" ]; then cp "$var/files" "$var/saved/files"; fi
write_restore >"$var/saved/restore.sh"
: >"$var/pending"
setsid sh "$var/saved/restore.sh" "$confirm_s" </dev/null >/dev/null 2>&1 &
remove_files
new_files >"$var/files"
if ! { write_files && activate; }; then
  sh "$var/saved/restore.sh" 0
  fail "the settings could not be applied; everything is as before"
fi
"""

_CHECK = r"""
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  missing=$(missing)
  [ -n "$missing" ] || break
  sleep 0.5
done
[ -z "$missing" ] || fail "did not get$missing"
"""

_CONFIRM = r"""
mv "$var/pending" "$var/confirmed" 2>/dev/null || fail "has restored its earlier settings"
rm -rf "$var/saved" "$var/confirmed"
"""

_UNDO = r"""
[ -e "$var/files" ] || { echo "nothing to undo"; exit 0; }
[ ! -e "$var/pending" ] || fail "a change is not confirmed; it is restored within a minute"
remove_files
rm -f "$var/files"
deactivate
put_back
rm -f "$run"
rmdir "$var" 2>/dev/null || true
"""


def apply_script(
    manager: Manager,
    ports: Sequence[KeptPort],
    files: Sequence[ConfigFile],
    confirm_s: float = CONFIRM_S,
) -> str:
    """Writes the files and activates them; restores what was there after `confirm_s`."""
    restore = "\n".join((_COMMON, *_deactivate(manager, ports), _RESTORE))
    return _script(
        f"confirm_s={confirm_s:g}",
        *_function("new_files", (f"echo {shlex.quote(file.path)}" for file in files)),
        *_function("write_files", _write(files)),
        *_function("save_state", _save(ports)),
        *_function("activate", _activate(manager, ports)),
        *_function("write_restore", (f"printf %s {shlex.quote(restore)}",)),
        _APPLY,
    )


def check_script(ports: Sequence[KeptPort]) -> str:
    """Waits for the addresses of the ports that have a carrier."""
    checks = [
        f"""if ip -o link show dev {port.interface} | grep -q LOWER_UP &&
  ! ip -o address show dev {port.interface} -tentative | grep -qF " {port.address} "; then
  printf ' %s at %s' {port.address} {port.interface}
fi"""
        for port in ports
    ]
    return _script(*_function("missing", checks), _CHECK)


def confirm_script() -> str:
    """Cancels the restoration; fails if that has begun."""
    return _script(_CONFIRM)


def undo_script(manager: Manager, ports: Sequence[KeptPort]) -> str:
    """Removes what `apply` has written on this host."""
    return _script(*_deactivate(manager, ports), _UNDO)


def restore_script() -> str:
    """Restores at once, without the wait for a confirmation."""
    return _script('[ ! -e "$var/saved/restore.sh" ] || sh "$var/saved/restore.sh" 0')


def _script(*parts: str) -> str:
    """In one function, so that a truncated script does nothing."""
    return "\n".join(("main() {", _COMMON, *parts, "}", "main", ""))


def _function(name: str, lines: Iterator[str] | Sequence[str]) -> Iterator[str]:
    yield f"{name}() {{"
    yield from lines
    yield "}"


def _write(files: Sequence[ConfigFile]) -> Iterator[str]:
    for file in files:
        path = shlex.quote(file.path)
        yield f'mkdir -p "{file.path.rpartition("/")[0]}" &&'
        yield f"(umask 077; printf %s {shlex.quote(file.text)} >{path}) &&"
        yield f"chmod {file.mode:o} {path} &&"
    yield ":"


def _save(ports: Sequence[KeptPort]) -> Iterator[str]:
    """Once until the next restart: a second change must not save the settings of the first."""
    yield '[ ! -e "$run" ] || return 0'
    yield "{"
    for port in ports:
        name = port.interface
        yield f"cat /sys/class/net/{name}/mtu 2>/dev/null | sed 's/^/mtu {name} /'"
        show = f"ip -o address show dev {name} 2>/dev/null"
        yield f"{show} | while read -r _ _ _ address _; do echo address {name} $address; done"
        for setting, _ in port.sysctls:
            path = f"/proc/sys/net/ipv4/conf/{name}/{setting}"
            yield f"echo sysctl {name}/{setting} $(cat {path} 2>/dev/null)"
    yield '} >"$run"'


def _activate(manager: Manager, ports: Sequence[KeptPort]) -> Iterator[str]:
    for port in ports:
        for setting, value in port.sysctls:
            yield f"echo {value} >/proc/sys/net/ipv4/conf/{port.interface}/{setting} &&"
    names = " ".join(port.interface for port in ports)
    if manager == "netplan":
        yield "netplan apply"
    elif manager == "networkd":
        yield "networkctl reload &&"
        yield f"networkctl reconfigure {names}"
    else:
        yield "nmcli connection reload &&"
        yield f"for name in {names}; do"
        yield '  nmcli -w 20 connection up "topoopt-$name" ||'
        yield '    grep -q 0 "/sys/class/net/$name/carrier" || return 1'
        yield "done"


def _deactivate(manager: Manager, ports: Sequence[KeptPort]) -> Iterator[str]:
    """After the files have gone, or changed back: the manager may not manage the ports now."""
    names = " ".join(port.interface for port in ports)
    commands = {
        "netplan": ("netplan apply || true",),
        "networkd": ("networkctl reload || true", f"networkctl reconfigure {names} || true"),
        "networkmanager": (
            "nmcli connection reload || true",
            f'for name in {names}; do nmcli -w 20 connection up "topoopt-$name" || true; done',
        ),
    }
    return _function("deactivate", commands[manager])
