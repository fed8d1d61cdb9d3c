#!/bin/sh
# A switch with three veth pairs in a network namespace of its own, and PTF at their other ends. Needs root.
# Usage: tests/clients/ptf/run.sh, from the root of the repository; PYTHON has netfold, PTF is the ptf command.
set -eu
space=netfold-ptf-$$
switch=
trap 'test -z "$switch" || kill "$switch"; ip netns delete "$space"' EXIT
ip netns add "$space"
ip -n "$space" link set lo up
for n in 1 2 3; do
    ip -n "$space" link add "s$n" type veth peer name "h$n"
    for end in "s$n" "h$n"; do
        ip netns exec "$space" sysctl -qw "net.ipv6.conf.$end.disable_ipv6=1"
        ip -n "$space" link set "$end" up arp off
    done
done
ready=$(mktemp -u)
ip netns exec "$space" "${PYTHON:-python3}" -m emulation switch --p4rt 127.0.0.1:9559 --cpu-port 510 \
    --port 1=s1 --port 2=s2 --port 3=s3 --ready-file "$ready" &
switch=$!
until test -e "$ready"; do sleep 0.1; done
cd "$(mktemp -d)"  # PTF leaves a log where it runs
ip netns exec "$space" "${PTF:-ptf}" --test-dir "$OLDPWD/tests/clients/ptf" -i 1@h1 -i 2@h2 -i 3@h3 \
    -t "p4rt='127.0.0.1:9559'"
