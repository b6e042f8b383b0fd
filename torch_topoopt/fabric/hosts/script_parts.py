"""The shell functions of host scripts (host_script.py), which are the same for every host.

Lines of the state file, in the order of the changes; words are separated by spaces:

    plan DIGEST                  the plan of the setup
    sysctl PATH OLD-VALUE
    mtu INTERFACE OLD-MTU
    up INTERFACE                 it was down
    address INTERFACE ADDRESS    it was not there; likewise second, relay
    second INTERFACE
    route DESTINATION OLD-ROUTE  OLD-ROUTE is empty where there was none
    neighbour INTERFACE ADDRESS OLD-MAC
"""

from __future__ import annotations

COMMON = r"""
fail() {
  echo "topoopt: $*" >&2
  exit 1
}

check_plan() {
  if [ -e "$state" ] && ! grep -qx "plan $plan" "$state"; then
    fail "$host is set up for another $(head -n 1 "$state") ($state);" \
      "run the undo script of that plan first"
  fi
}

# Sets the option of ip for the family of an address, and the prefix length of one address alone.
classify() {
  case "$1" in
    *:*) family=-6 whole=128 ;;
    *) family=-4 whole=32 ;;
  esac
}
"""

REVERT = r"""
# Takes back one line of the state file; what is gone already needs nothing.
revert_one() {
  case "$1" in
    sysctl) if [ -e "$2" ]; then printf '%s\n' "$3" >"$2"; fi ;;
    mtu) if has_link "$2"; then ip link set dev "$2" mtu "$3"; fi ;;
    up) if has_link "$2"; then ip link set dev "$2" down; fi ;;
    address) if has_address "$2" "$3"; then ip address del "$3" dev "$2"; fi ;;
    second) if has_link "$2"; then ip link del dev "$2"; fi ;;
    route)
      classify "$2"
      if [ -n "$(ip "$family" route show "$2/$whole" table main)" ]; then
        ip "$family" route del "$2/$whole" table main
      fi
      # shellcheck disable=SC2086 # the words of the old route
      if [ -n "$3" ]; then ip "$family" route add $3 table main; fi
      ;;
    neighbour)
      address="${3%% *}"
      old="${3#"$address"}"
      if [ -n "$(ip neigh show "$address" dev "$2" nud permanent 2>/dev/null)" ]; then
        ip neigh del "$address" dev "$2"
      fi
      # shellcheck disable=SC2086 # one word, after a space
      if [ -n "$old" ]; then ip neigh replace "$address" lladdr $old dev "$2" nud permanent; fi
      ;;
    plan) ;;
    *) fail "$state: '$1' is not a line that this script knows" ;;
  esac
}

has_link() {
  ip link show dev "$1" >/dev/null 2>&1
}

has_address() {
  classify "$2"
  ip -o "$family" address show dev "$1" 2>/dev/null | grep -qF " $2 "
}

# Last change first, with one look at each file or interface before it is touched.
revert() {
  sed '1!G;h;$!d' "$state" | while read -r kind what was; do
    revert_one "$kind" "$what" "$was"
  done
  rm -f "$state"
  rmdir "$state_dir" 2>/dev/null || true
}
"""

APPLY = r"""
need() {
  command -v "$1" >/dev/null || fail "this script needs the program $1 (Debian: iproute2)"
}

# An interface that must be there, with the MAC address that others will send to.
check_interface() {
  has_link "$1" ||
    fail "this host has no interface $1; run this on $host, or correct the cluster file"
  if [ $# -gt 1 ] && ! ip -o link show dev "$1" | grep -qiF "link/ether $2 "; then
    fail "$1 does not have the MAC address $2 of the cluster file: another card, or another host"
  fi
}

check_free() {
  if has_link "$1" && ! grep -qsx "second $1" "$state"; then
    fail "there is an interface $1 that this script did not make; remove or rename it"
  fi
}

begin() {
  fresh=0
  if [ ! -e "$state" ]; then
    fresh=1
    mkdir -p "$state_dir"
    printf 'plan %s\n' "$plan" >"$state"
  fi
  changes=0
  trap 'end $?' EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

end() {
  trap - EXIT HUP INT TERM
  if [ "$1" != 0 ] && [ "$fresh" = 1 ]; then
    echo "topoopt: a step failed; taking back what was done" >&2
    revert
  fi
  exit "$1"
}

# Writes a change down, before it is made.
record() {
  printf '%s\n' "$*" >>"$state"
  changes=$((changes + 1))
}

set_mtu() {
  was="$(ip -o link show dev "$1" | sed -n 's/.* mtu \([0-9]*\) .*/\1/p')"
  [ "$was" = "$2" ] && return 0
  record mtu "$1" "$was"
  ip link set dev "$1" mtu "$2"
}

bring_up() {
  ip -o link show dev "$1" | grep -q '[<,]UP[,>]' && return 0
  record up "$1"
  ip link set dev "$1" up
}

add_address() {
  has_address "$1" "$2" && return 0
  record address "$1" "$2"
  case "$2" in
    # A route from an IPv6 address is refused as long as the kernel looks for others that have it.
    *:*) ip address add "$2" dev "$1" nodad ;;
    *) ip address add "$2" dev "$1" ;;
  esac
}

# The second interface of a port: takes the frames that carry the forwarding address, and never
# says anything itself (no ARP, no IPv6).
add_second() {
  if ! has_link "$2"; then
    record second "$2"
    ip link add link "$1" name "$2" address "$forward_mac" type macvlan mode private
    ip link set dev "$2" arp off addrgenmode none
  fi
  ip -o link show dev "$2" | grep -q '[<,]UP[,>]' || ip link set dev "$2" up
}

set_sysctl() {
  was="$(tr '\t' ' ' <"$1")"
  [ "$was" = "$2" ] && return 0
  record sysctl "$1" "$was"
  printf '%s\n' "$2" >"$1"
}

# The last number of a setting: at least this.
raise_sysctl() {
  was="$(tr '\t' ' ' <"$1")"
  [ "${was##* }" -ge "$2" ] && return 0
  if [ ! -w "$1" ]; then
    echo "topoopt: warning: $1 stays at ${was##* }, which is less than $2: it can be raised on" \
      "the machine only, not in a network namespace" >&2
    return 0
  fi
  case "$was" in
    *' '*) set_sysctl "$1" "${was% *} $2" ;;
    *) set_sysctl "$1" "$2" ;;
  esac
}

# The kernel takes the stricter of `all` and the interface: moves what `all` says to each interface.
release_rp_filter() {
  all="$(cat /proc/sys/net/ipv4/conf/all/rp_filter)"
  [ "$all" = 0 ] && return 0
  for file in /proc/sys/net/ipv4/conf/*/rp_filter; do
    if [ "$(cat "$file")" -lt "$all" ]; then set_sysctl "$file" "$all"; fi
  done
  set_sysctl /proc/sys/net/ipv4/conf/all/rp_filter 0
}

set_route() {
  classify "$1"
  was="$(ip "$family" route show "$1/$whole" table main | sed 's/ linkdown//; s/ *$//')"
  case "$was" in
    "$1 dev $2 "*"src $3" | "$1 dev $2 "*"src $3 "*) return 0 ;;
  esac
  record route "$1" "$was"
  ip "$family" route replace "$1/$whole" dev "$2" src "$3" scope link table main
}

set_neighbour() {
  was="$(ip neigh show "$1" dev "$2" nud permanent | sed -n 's/.*lladdr \([0-9a-f:]*\).*/\1/p')"
  [ "$was" = "$3" ] && return 0
  record neighbour "$2" "$1" "$was"
  ip neigh replace "$1" lladdr "$3" dev "$2" nud permanent
}

# Does the kernel take a rule of classifier flower that rewrites an address?
has_flower() {
  tc filter add dev "$1" ingress pref 65000 protocol ip flower dst_mac "$forward_mac" \
    dst_ip 192.0.2.1 action pedit ex munge eth dst set "$forward_mac" pipe \
    action mirred egress redirect dev "$1" 2>/dev/null || return 1
  tc filter del dev "$1" ingress pref 65000
}

add_clsact() {
  tc qdisc show dev "$1" | grep -q '^qdisc clsact ' || tc qdisc add dev "$1" clsact
}

choose_classifier() {
  if [ "$classifier" = auto ]; then
    add_clsact "$1"
    if has_flower "$1"; then classifier=flower; else classifier=u32; fi
  fi
  echo "topoopt: relays by tc $classifier"
}

# relay NUMBER ENTRY SOURCE|any DESTINATION EXIT MAC|same
relay() {
  add_clsact "$2"
  [ -z "$(tc filter show dev "$2" ingress pref "$1")" ] || return 0
  changes=$((changes + 1)) # goes with its interface, so nothing to write down
  classify "$4"
  case "$family" in
    -6) protocol=ipv6 match=ip6 ;;
    *) protocol=ip match=ip ;;
  esac
  if [ "$classifier" = flower ]; then
    relay_flower "$@"
  else
    relay_u32 "$@"
  fi
}

relay_flower() {
  number="$1" entry="$2" source="$3" destination="$4" leaves="$5" mac="$6"
  set -- dst_mac "$forward_mac" dst_ip "$destination"
  if [ "$source" != any ]; then set -- "$@" src_ip "$source"; fi
  if [ "$mac" != same ]; then set -- "$@" action pedit ex munge eth dst set "$mac" pipe; fi
  tc filter add dev "$entry" ingress pref "$number" protocol "$protocol" flower "$@" \
    action mirred egress redirect dev "$leaves"
}

# Redirects only: the frame keeps the forwarding address, which every port's second interface takes.
relay_u32() {
  number="$1" entry="$2" source="$3" destination="$4" leaves="$5"
  set -- match "$match" dst "$destination/$whole"
  if [ "$source" != any ]; then set -- "$@" match "$match" src "$source/$whole"; fi
  tc filter add dev "$entry" ingress pref "$number" protocol "$protocol" u32 "$@" \
    action mirred egress redirect dev "$leaves"
}

finish() {
  echo "topoopt: $host is set up ($changes changes; $state says what it was before)"
}
"""
